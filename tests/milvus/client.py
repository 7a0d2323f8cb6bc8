"""What a user does with a Milvus; runs in the environment of requirements.txt.

    client.py PORT write    # a collection of 1,000 vectors with an index, and a search
    client.py PORT read     # the same search
    client.py PORT name N   # try to make a collection with a name of N characters

Prints one line of JSON.
"""

import json
import random
import sys

from pymilvus import (
    Collection,
    CollectionSchema,
    DataType,
    FieldSchema,
    MilvusException,
    connections,
)

SIZE, DIMENSIONS, WANTED = 1000, 32, 7


def vectors() -> list[list[float]]:
    generator = random.Random(1)
    return [[generator.random() for _ in range(DIMENSIONS)] for _ in range(SIZE)]


def schema() -> CollectionSchema:
    fields = [
        FieldSchema("id", DataType.INT64, is_primary=True),
        FieldSchema("vector", DataType.FLOAT_VECTOR, dim=DIMENSIONS),
    ]
    return CollectionSchema(fields)


def search(collection: Collection) -> dict[str, float]:
    collection.load()
    parameters = {"metric_type": "L2", "params": {"ef": 64}}
    first = collection.search([vectors()[WANTED]], "vector", parameters, limit=3)[0][0]
    return {"count": collection.num_entities, "first": first.id, "distance": first.distance}


def main(port: str, what: str, length: str = "0") -> dict[str, object]:
    connections.connect(host="127.0.0.1", port=port)
    if what == "name":
        try:
            Collection("n" * int(length), schema())
        except MilvusException as error:
            return {"refused": error.message}
        return {"refused": None}
    collection = Collection("test", schema())
    if what == "write":
        collection.insert([list(range(SIZE)), vectors()])
        collection.flush()
        index = {
            "index_type": "HNSW",
            "metric_type": "L2",
            "params": {"M": 8, "efConstruction": 64},
        }
        collection.create_index("vector", index)
    return dict(search(collection))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

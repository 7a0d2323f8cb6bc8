"""The floor of a pass: read and parse the two lists in pages of 500, and nothing else.

    python floor.py SERVER AUTHORITY TOKEN NAMESPACE PASSES [nogc]

Prints the CPU seconds of each pass; `nogc` turns off Python's cyclic garbage collector.
"""

import gc
import json
import sys
import time

import urllib3

server, authority, token, namespace, passes, *options = sys.argv[1:]
if options == ["nogc"]:
    gc.disable()
http = urllib3.PoolManager(ca_certs=authority, retries=False)
label = "app.kubernetes.io%2Fmanaged-by%3Dmilvus-polling-operator"
paths = (
    f"/api/v1/namespaces/{namespace}/pods?labelSelector={label}&",
    f"/apis/zilliz.com/v1/namespaces/{namespace}/milvuses?",
)
for _ in range(int(passes)):
    started = time.process_time()
    lists = []
    for path in paths:
        more: str | None = ""
        while more is not None:
            url = f"{server}{path}limit=500&continue={more}"
            answer = http.request("GET", url, headers={"Authorization": f"Bearer {token}"})
            page = json.loads(answer.data)
            lists += page["items"]
            more = page["metadata"].get("continue") or None
    print(f"{time.process_time() - started:.4f}", flush=True)

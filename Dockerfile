# The operator and the packages of requirements.lock. At run time it writes nothing and needs no particular user.
# Python 3.13 and later reject certificates of older clusters (VERIFY_X509_STRICT).
# Python 3.12 cannot read a list in which one spec is nested 1,500 levels deep.
ARG BASE=python:3.11-slim
FROM ${BASE}

LABEL org.opencontainers.image.title="milvus-polling-operator" \
      org.opencontainers.image.description="Keeps the pods of every Milvus resource running" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"

WORKDIR /app
COPY requirements.lock .
# With SOURCE_DATE_EPOCH, bytecode is valid by hash and not by time, so two builds give the same bytes.
RUN SOURCE_DATE_EPOCH=0 python3 -m pip install --no-cache-dir --only-binary=:all: --require-hashes -r requirements.lock
COPY milvus_operator.py LICENSE ./
RUN SOURCE_DATE_EPOCH=0 python3 -m compileall -q .
# Shows that nothing is missing. It also leaves the bytecode of what is imported of Python itself, which the base lacks.
RUN python3 -m milvus_operator --version

USER 65532:65532
ENTRYPOINT ["python3", "-m", "milvus_operator"]

# The operator and the packages of requirements.lock. At run time it writes nothing and needs no particular user.
ARG BASE=python:3.13-slim@sha256:70729b46c69b4f1e97c4822c1af3df53a1476cf5ddc6c087c0c10bc3a5678c2f
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

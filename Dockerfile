# The operator and what it imports. Nothing is written and no shell is used at run time; any user can run it.
ARG BASE=python:3.13-slim@sha256:70729b46c69b4f1e97c4822c1af3df53a1476cf5ddc6c087c0c10bc3a5678c2f

FROM ${BASE} AS packages
WORKDIR /app
COPY requirements.lock /
RUN python3 -m pip install --no-cache-dir --no-compile --only-binary=:all: --require-hashes --target=. -r /requirements.lock
# Most of the client is its asyncio twin and its generated calls, which nothing here imports.
RUN rm -r kubernetes/aio kubernetes/client/api aiohttp*
COPY --chmod=644 milvus_operator.py LICENSE ./

FROM ${BASE}
LABEL org.opencontainers.image.title="milvus-polling-operator" \
      org.opencontainers.image.description="Keeps the pods of every Milvus resource running" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
COPY --from=packages /app /app
WORKDIR /app
# Proves that nothing is missing, and compiles what was imported: neither the base nor /app has bytecode. It goes by hash,
# not by time, because the times of files differ between two builds of the same image.
RUN python3 -B -c "import milvus_operator, py_compile as p, sys; \
    files = [module.__file__ for module in sys.modules.values() if str(getattr(module, '__file__', '')).endswith('.py')]; \
    [p.compile(file, invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH) for file in files]"
ENV PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python3", "-m", "milvus_operator"]

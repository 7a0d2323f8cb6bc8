# The operator and what it needs to run; no shell, no pip and no writable folder is used at run time.
#   docker build -t milvus-operator:0.1.0 .
#   docker build --build-arg BASE=my/python:3.13 -t milvus-operator:0.1.0 .
ARG BASE=python:3.13-slim

FROM ${BASE} AS packages
COPY requirements.txt /
RUN ["python3", "-m", "pip", "install", "--no-cache-dir", "--target=/app", "-r", "/requirements.txt"]
COPY milvus_operator.py /app/

FROM ${BASE}
COPY --from=packages /app /app
ENV PYTHONPATH=/app PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python3", "/app/milvus_operator.py"]

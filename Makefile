# `make` lists the targets. Only Python 3.11 or later must already be installed.
KUBECTL ?= kubectl
WAIT ?= auto
PYTEST_ARGS ?=
MINUTES ?= 60
# Another Python gets its own environment beside .venv: make test PYTHON=python3.13
VENV := .venv$(if $(PYTHON),-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())'))
BIN := $(VENV)/bin
IMAGE ?= milvus-operator:0.1.0
DOCKER ?= docker
ASK := if [ -t 0 ]; then printf 'Continue? [y/N] '; read answer; [ "$$answer" = y ] || { echo "Nothing was removed."; exit 1; }; fi

.PHONY: help demo test matrix lint bench soak install uninstall run image lock deploy undeploy bundle release clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | while IFS='|' read -r t d; do printf '  make %-10s %s\n' "$$t" "$$d"; done

demo: $(VENV)/ready ## show the life of a Milvus on a local control plane (WAIT=no ends after the tour)
	@$(BIN)/python -m local.demo --wait=$(WAIT)

test: $(VENV)/ready ## run all tests, against a real kube-apiserver (PYTEST_ARGS='-k roll' for some)
	@$(if $(findstring not cluster,$(PYTEST_ARGS)),,$(BIN)/python -m local.controlplane build)
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

matrix: $(VENV)/ready ## run the tests marked platform, on each Python here and with older API servers; writes docs/tested.md
	@$(BIN)/python -m local.controlplane build
	$(BIN)/python -m tests.matrix

lint: $(VENV)/ready ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/bench ## compare the operator with bare requests, kopf and ReplicaSets; writes benchmarks/RESULTS.md
	@$(BIN)/python -m local.controlplane build
	$(BIN)/python -m benchmarks.bench $(ARGS)

soak: $(VENV)/ready ## run an hour of changes and faults; writes benchmarks/SOAK.md (MINUTES=5 for a short run)
	@$(BIN)/python -m local.controlplane build
	$(BIN)/python -m tests.soak $(MINUTES)

install: ## install the CRD in the current kubeconfig's cluster
	$(KUBECTL) apply -f crd.yaml

uninstall: ## delete the CRD from that cluster, and with it every Milvus and its pods
	@echo "This deletes the CRD, and with it every Milvus of the cluster and its pods. Data without spec.storage is lost."
	@echo "Claims and Services stay. So does the operator: 'make undeploy' deletes it."
	@$(ASK)
	$(KUBECTL) delete -f crd.yaml --ignore-not-found

run: $(VENV)/ready ## run the operator on this machine, against that cluster (ARGS='-A -v' for options)
	$(BIN)/python milvus_operator.py $(ARGS)

image: ## build the operator's container image (IMAGE=…, BASE=… for another Python image, DOCKER=podman or buildah)
	$(DOCKER) build $(if $(BASE),--build-arg BASE=$(BASE)) -t $(IMAGE) .

lock: $(VENV)/ready ## pin the newest packages that requirements.txt allows, with hashes, in requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --python-version=3.13 --python-platform=linux \
		--custom-compile-command='make lock' --output-file=requirements.lock requirements.txt

deploy: ## run the operator as a pod in the current kubeconfig's cluster (IMAGE=…)
	sed 's|image: milvus-operator:0.1.0|image: $(IMAGE)|' deploy.yaml | $(KUBECTL) apply -f -

undeploy: ## delete the operator, its rights and its namespace; every Milvus in other namespaces keeps running
	@echo "This deletes the operator, its rights, and the namespace milvus-operator with everything in it."
	@echo "The CRD stays, and every Milvus in other namespaces keeps running, but nothing repairs it."
	@$(ASK)
	$(KUBECTL) delete -f deploy.yaml --ignore-not-found

bundle: $(VENV)/ready ## make the bundle for OLM, from the manifests and bundle/csv.yaml
	$(BIN)/python -m bundle.make .

release: $(VENV)/ready ## make the files of a release in dist/ (IMAGE=…; with DOCKER=podman or buildah, also the image)
	rm -rf dist
	$(BIN)/python -m bundle.make dist $(IMAGE)
ifneq ($(origin DOCKER),file)
	$(DOCKER) build --timestamp=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(if $(BASE),--build-arg BASE=$(BASE)) -t $(IMAGE) .
	$(DOCKER) push $(IMAGE) docker-archive:dist/milvus-operator-image.tar:$(IMAGE)
endif
	cd dist && sha256sum milvus-operator-* > SHA256SUMS

clean: ## remove the virtual environments and the tools' caches
	rm -rf dist .venv* .matrix .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/ready: requirements.txt tests/requirements.txt
	@test -x $(BIN)/python || { echo "making a virtual environment in $(VENV)"; $(or $(PYTHON),python3) -m venv $(VENV); }
	@echo "installing requirements.txt and tests/requirements.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r tests/requirements.txt
	@touch $@

$(VENV)/bench: $(VENV)/ready benchmarks/requirements.txt
	@echo "installing benchmarks/requirements.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	@touch $@

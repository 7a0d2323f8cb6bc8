# `make` shows what there is. Nothing needs to be installed before but Python 3.11 or later.
PYTHON ?= python3
KUBECTL ?= kubectl
WAIT ?= auto
PYTEST_ARGS ?=
MINUTES ?= 60
BIN := .venv/bin
IMAGE ?= milvus-operator:0.1.0
DOCKER ?= docker
ASK := if [ -t 0 ]; then printf 'Go on? [y/N] '; read answer; [ "$$answer" = y ] || { echo "Nothing was removed."; exit 1; }; fi

.PHONY: help demo test matrix lint bench soak install uninstall run image deploy undeploy bundle release clean

help: ## show the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | while IFS='|' read -r t d; do printf '  make %-10s %s\n' "$$t" "$$d"; done

demo: .venv/ready ## the life of a Milvus on a local control plane (WAIT=no ends after the tour)
	@$(BIN)/python tests/demo.py --wait=$(WAIT)

test: .venv/ready ## all tests, against a real kube-apiserver (PYTEST_ARGS='-k roll' for some)
	@$(BIN)/python tests/controlplane.py build
	$(BIN)/python -m pytest $(PYTEST_ARGS)

matrix: .venv/ready ## what may differ, on each Python of this machine; into docs/tested.md
	@$(BIN)/python tests/controlplane.py build
	$(BIN)/python tests/matrix.py

lint: .venv/ready ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/bench ## the operator beside bare requests, kopf and ReplicaSets; into benchmarks/RESULTS.md
	@$(BIN)/python tests/controlplane.py build
	$(BIN)/python benchmarks/bench.py $(ARGS)

soak: .venv/ready ## an hour of changes and faults, into tests/SOAK.md (MINUTES=5 for a short one)
	@$(BIN)/python tests/controlplane.py build
	PYTHONPATH=. $(BIN)/python tests/soak.py $(MINUTES)

install: ## the CRD, into the cluster of the current kubeconfig
	$(KUBECTL) apply -f crd.yaml

uninstall: ## remove the CRD from that cluster, and with it every Milvus and its pods
	@echo "This removes the CRD, and with it every Milvus of the cluster and its pods. Data without spec.storage are lost."
	@echo "Claims and Services stay. So does the operator: 'make undeploy' removes it."
	@$(ASK)
	$(KUBECTL) delete -f crd.yaml --ignore-not-found

run: .venv/ready ## the operator, here, against that cluster (ARGS='-A -v' for options)
	$(BIN)/python milvus_operator.py $(ARGS)

image: ## the operator's container image (IMAGE=…, BASE=… for another Python image, DOCKER=podman)
	$(DOCKER) build $(if $(BASE),--build-arg BASE=$(BASE)) -t $(IMAGE) .

deploy: ## the operator as a pod, into the cluster of the current kubeconfig (IMAGE=…)
	sed 's|image: milvus-operator:0.1.0|image: $(IMAGE)|' deploy.yaml | $(KUBECTL) apply -f -

undeploy: ## remove that pod, its rights and its namespace; every Milvus and its pods stay
	@echo "This removes the namespace milvus-operator with all that is in it, and the operator's rights."
	@echo "The CRD, every Milvus elsewhere, its pods and claims stay: they run on, and nothing repairs them."
	@$(ASK)
	$(KUBECTL) delete -f deploy.yaml --ignore-not-found

bundle: .venv/ready ## the bundle for OLM, from the manifests and bundle/csv.yaml
	$(BIN)/python bundle/make.py .

release: .venv/ready ## the files of a release, into dist/ (IMAGE=…; DOCKER=podman or buildah: the image, too)
	rm -rf dist
	$(BIN)/python bundle/make.py dist $(IMAGE)
ifneq ($(origin DOCKER),file)
	$(DOCKER) build --timestamp=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(if $(BASE),--build-arg BASE=$(BASE)) -t $(IMAGE) .
	$(DOCKER) push $(IMAGE) docker-archive:dist/milvus-operator-image.tar:$(IMAGE)
endif
	cd dist && sha256sum milvus-operator-* > SHA256SUMS

clean: ## remove the virtual environment and the caches of the tools
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/ready: requirements.txt tests/requirements.txt
	@test -x $(BIN)/python || { echo "making a virtual environment in .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing requirements.txt and tests/requirements.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r tests/requirements.txt
	@touch $@

.venv/bench: .venv/ready benchmarks/requirements.txt
	@echo "installing benchmarks/requirements.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	@touch $@

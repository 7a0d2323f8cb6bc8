# `make` lists the targets. Only Python 3.11 or later must already be installed; `demo` and `test` need Linux, and what
# works on a cluster needs kubectl and its current context.
PYTHON ?= python3
KUBECTL ?= kubectl
DOCKER ?= docker
NAME := milvus-polling-operator
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' milvus_operator.py)
IMAGE ?= $(NAME):$(VERSION)
BIN := .venv/bin
# An environment often has a variable of that name, so it counts only where it is written: make deploy NAMESPACE=…
ifneq ($(origin NAMESPACE),command line)
NAMESPACE :=
endif
# What `make deploy` applies: deploy.yaml with the image and, for one namespace, with a Role instead of a ClusterRole.
ONE := -e '1,/^---$$/d' -e 's/ClusterRole/Role/' -e 's/$(NAME)-system/$(NAMESPACE)/' -e 's/--all-namespaces, //'
RENDER = sed $(if $(NAMESPACE),$(ONE)) -e 's|image: .*|image: $(IMAGE)|' deploy.yaml
APPLY = $(KUBECTL) $(if $(NAMESPACE),--namespace=$(NAMESPACE))
ASK := if [ "$(YES)" = 1 ]; then answer=y; else printf 'Continue? [y/N] '; read answer; fi; [ "$$answer" = y ]

.PHONY: help demo test lint bench e2e run image install uninstall manifest deploy undeploy clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/test ## show the life of a Milvus on a local control plane (WAIT=no: end after it)
	@$(BIN)/python -m local.demo --wait=$(or $(WAIT),auto)

test: .venv/test ## run the tests (ARGS='-k roll' for some, ARGS='-m slow' for those with the real Milvus)
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/test ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/bench ## measure it; write docs/reports/benchmark.md
	$(BIN)/python -m benchmarks.bench $(ARGS)

e2e: .venv/e2e ## try all of it on a cluster (IMAGE=…, MILVUS=…)
	$(BIN)/python -m local.e2e $(if $(MILVUS),--milvus=$(MILVUS)) $(IMAGE)

run: .venv/run ## run the operator here, for a cluster (ARGS='-A -v')
	$(BIN)/python milvus_operator.py $(ARGS)

image: ## build the operator's image (IMAGE=…, DOCKER=podman)
	$(DOCKER) build -t $(IMAGE) .

install: ## install the CRD
	$(KUBECTL) apply -f crd.yaml

uninstall: ## delete the CRD, with every Milvus and its pods
	@echo "This deletes every Milvus of the cluster and its pods. Data without spec.storage is lost; claims stay."
	@$(ASK)
	$(KUBECTL) delete -f crd.yaml --ignore-not-found

manifest: ## print what 'make deploy' applies (IMAGE=…, NAMESPACE=…)
	@$(RENDER)

deploy: ## run the operator as a pod (IMAGE=…, NAMESPACE=… for one namespace)
	$(RENDER) | $(APPLY) apply -f -

undeploy: ## delete the operator (NAMESPACE=… as it was deployed)
	@echo "This deletes the operator, and $(if $(NAMESPACE),its Role in $(NAMESPACE),the namespace $(NAME)-system). Every Milvus keeps running."
	@$(ASK)
	$(RENDER) | $(APPLY) delete -f - --ignore-not-found

clean: ## remove the virtual environment and the tools' caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/run: requirements.txt
.venv/test: .venv/run tests/requirements.txt
.venv/e2e: .venv/test local/requirements-e2e.txt
.venv/bench: .venv/test benchmarks/requirements.txt
.venv/run .venv/test .venv/e2e .venv/bench:
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: PYTHON=…")' && \
		$(PYTHON) -m venv --clear .venv; }
	@echo "installing $(filter %.txt,$^)" && $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		$(addprefix -r ,$(filter %.txt,$^)) && touch $@

# `make` lists the targets. Only Python 3.11 or later must already be installed; `demo` and `test` need Linux, and what
# works on a cluster needs kubectl.
KUBECTL ?= kubectl
# WAIT=no ends the demo after the tour.
WAIT ?= auto
PYTEST_ARGS ?=
MINUTES ?= 60
# Another Python gets its own environment beside .venv: make test PYTHON=python3.13
VENV := .venv$(if $(PYTHON),-$(or $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null),$(error \
	there is no $(PYTHON) on this machine)))
BIN := $(VENV)/bin
NEW := $(or $(PYTHON),python3)
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' milvus_operator.py)
IMAGE ?= milvus-polling-operator:$(VERSION)
# Only `make deploy NAMESPACE=…`: an environment often has a variable of that name.
ifneq ($(origin NAMESPACE),command line)
NAMESPACE :=
else ifeq ($(strip $(NAMESPACE)),)
$(error NAMESPACE is empty: give a name, or leave it out for all namespaces)
endif
# kustomize makes what is deployed: deploy.yaml, or samples/one-namespace in that namespace, with this image.
RENDER = { folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && $(MANIFEST) >"$$folder/manifest.yaml" && \
	printf '%s\n' $(OVERLAY) >"$$folder/kustomization.yaml" && $(KUBECTL) kustomize "$$folder"; }
MANIFEST = $(if $(NAMESPACE),$(KUBECTL) kustomize --load-restrictor=LoadRestrictionsNone samples/one-namespace,cat deploy.yaml)
OVERLAY = 'resources: [manifest.yaml]' $(if $(NAMESPACE),'namespace: $(NAMESPACE)') 'patches:' '- target: {kind: Deployment}' \
	'  patch: "- {op: replace, path: /spec/template/spec/containers/0/image, value: $(IMAGE)}"'
DOCKER ?= docker
ASK := if [ "$(YES)" = 1 ]; then answer=y; elif [ -t 0 ]; then printf 'Continue? [y/N] '; read answer; \
	else echo "Without a terminal, this needs YES=1."; fi; \
	[ "$$answer" = y ] || { echo "Nothing was removed."; exit 1; }

.PHONY: help demo check test test-all e2e matrix lint bench soak install uninstall run image lock deploy undeploy release version clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1|/' | while IFS='|' read -r t d; do printf '  make %-10s %s\n' "$$t" "$$d"; done

demo: $(VENV)/ready ## show the life of a Milvus on a local control plane
	@$(BIN)/python -m local.demo --wait=$(WAIT)

check: lint ## run ruff, mypy and the tests that need no cluster
	$(BIN)/python -m pytest -n auto --dist worksteal -q -m "not cluster and not slow" $(PYTEST_ARGS)

test: $(VENV)/ready ## run the tests that a change must pass (PYTEST_ARGS='-k roll' for some)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/ready ## run all tests, also those that take many minutes
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

e2e: needs-image $(VENV)/e2e ## try all of it on the cluster of the current kubeconfig (IMAGE=…, MILVUS=…)
	$(BIN)/python -m local.e2e $(if $(MILVUS),--milvus=$(MILVUS)) $(IMAGE)

matrix: $(VENV)/ready ## run some tests on each Python and with other API servers
	$(BIN)/nox -f tests/noxfile.py

lint: $(VENV)/ready ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/bench ## measure it; write docs/reports/benchmark.md
	$(BIN)/python -m benchmarks.bench $(ARGS)

soak: $(VENV)/ready ## change and break things for an hour, and watch what grows (MINUTES=5 for less)
	MINUTES=$(MINUTES) $(BIN)/python -m pytest -s -k soak tests/test_faults.py

install: ## install the CRD in the current kubeconfig's cluster
	$(KUBECTL) apply -f crd.yaml

uninstall: ## delete the CRD there, with every Milvus and its pods
	@echo "This deletes the CRD, and with it every Milvus of the cluster and its pods. Data without spec.storage is lost."
	@echo "Claims stay. So does the operator: 'make undeploy' deletes it."
	@$(ASK)
	$(KUBECTL) delete -f crd.yaml --ignore-not-found

run: $(VENV)/run ## run the operator here, for that cluster (ARGS='-A -v')
	$(BIN)/python milvus_operator.py $(ARGS)

image: ## build the operator's image (IMAGE=…, DOCKER=podman)
	$(DOCKER) build $(if $(BASE),--build-arg BASE=$(BASE)) -t $(IMAGE) .

lock: $(VENV)/ready ## pin the newest packages that requirements.txt allows
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.13,<0.14'
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --python-version=3.13 --python-platform=linux \
		--custom-compile-command='make lock' --output-file=requirements.lock requirements.txt

deploy: needs-image ## run the operator as a pod there (IMAGE=…, NAMESPACE=…)
	$(RENDER) | $(KUBECTL) apply -f -

.PHONY: needs-image
needs-image:
ifeq ($(strip $(IMAGE)),)
	@echo "IMAGE is empty: give the name of the operator's image." && exit 1
else ifeq ($(origin IMAGE),file)
	@echo "No image is published yet. Build one, and bring it to where the nodes of your cluster find it:"
	@echo "  kind:       make image && kind load docker-image $(IMAGE) && make $(MAKECMDGOALS) IMAGE=$(IMAGE)"
	@echo "  minikube:   minikube image build -t $(IMAGE) . && make $(MAKECMDGOALS) IMAGE=$(IMAGE)"
	@echo "  a registry: make image IMAGE=<registry>/$(IMAGE) && docker push <registry>/$(IMAGE) && make $(MAKECMDGOALS) IMAGE=<registry>/$(IMAGE)"
	@exit 1
endif

undeploy: ## delete the operator and its namespace (NAMESPACE=… keeps it)
ifdef NAMESPACE
	@echo "This deletes the operator and its permissions in the namespace $(NAMESPACE)."
else
	@echo "This deletes the operator, its permissions, and the namespace milvus-polling-operator-system with everything in it."
endif
	@echo "The CRD stays, and every Milvus that remains keeps running, but is no longer managed by this operator."
	@$(ASK)
	$(RENDER) | $(KUBECTL) delete -f - --ignore-not-found

.PHONY: manifest
manifest: ## print what 'make deploy' applies (IMAGE=…, NAMESPACE=…)
	@$(RENDER)

# What pip installs is built of copies, with modes and a time that are always the same, so that the bytes are, too.
release: $(VENV)/run ## make the files of a release in dist/ (IMAGE=…)
	rm -rf dist && mkdir dist
	{ cat crd.yaml && echo --- && $(MAKE) --silent manifest IMAGE=$(IMAGE); } >dist/install.yaml
	$(MAKE) --silent manifest NAMESPACE=milvus IMAGE=$(IMAGE) >dist/install-one-namespace.yaml
	umask 022 && folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && \
		install -m 644 milvus_operator.py pyproject.toml requirements.txt README.md LICENSE "$$folder" && \
		SOURCE_DATE_EPOCH=315532800 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
		--wheel-dir=dist "$$folder"
	cp docs/reports/*.md dist
	cd dist && sha256sum * >SHA256SUMS

# Not the reports, which name the version that was measured, nor the changelog.
version: ## set the version of everything (V=0.2.0)
	@[ -n "$(V)" ] || { echo "Give the new version: make version V=0.2.0" && exit 1; }
	git grep -lFw '$(VERSION)' -- :!CHANGELOG.md :!docs/reports :!local/modules :!requirements.lock | \
		xargs sed -i 's/\b$(subst .,\.,$(VERSION))\b/$(V)/g'

clean: ## remove the virtual environments and the tools' caches
	rm -rf dist build *.egg-info .venv* .nox .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/run: requirements.txt
$(VENV)/ready: $(VENV)/run tests/requirements.txt
$(VENV)/e2e: $(VENV)/ready local/requirements-e2e.txt
$(VENV)/bench: $(VENV)/ready benchmarks/requirements.txt
$(VENV)/run $(VENV)/ready $(VENV)/e2e $(VENV)/bench:
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making a virtual environment in $(VENV)"; \
		$(NEW) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed")' && \
		$(NEW) -m venv --clear $(VENV); }
	@echo "installing $(filter %.txt,$^)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(addprefix -r ,$(filter %.txt,$^))
	@touch $@

# modelserver with the digit model, inference on port 8080:
#
#   docker build -t modelserver .
#   docker run --rm -p 8080:8080 -e MODELSERVER_INFERENCE_TOKEN=choose-your-own modelserver
#   curl -H "Authorization: Bearer choose-your-own" -T examples/mnist/digit-2.png localhost:8080/predictions/mnist
#
# Paths and user are those of TorchServe's image, and so are the words it is started with. Arguments of
# `docker run` are flags of modelserver. docs/docker.md has the rest; for GPUs:
#
#   docker build -t modelserver:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 .
#
# scripts/build_image.sh does the same with the base pinned by its digest, and labels what it was made from.

ARG BASE=python:3.12-slim-bookworm
# The only index that torch and torchvision come from. Where its last part is a build, as in torch 2.8.0+cpu, they
# must be of that one.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH="torch>=2.2 torchvision>=0.17"
# Extras of modelserver, such as sources,otel: those with a scripts/image-EXTRA.lock.
ARG MODELSERVER_EXTRAS=

FROM ${BASE} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY handlers handlers
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# What modelserver needs, and torch: none of it changes with modelserver's code.
FROM ${BASE} AS environment
RUN python -m venv /opt/venv
COPY scripts/image.lock /image.lock
RUN /opt/venv/bin/pip install --no-cache-dir --require-hashes -r /image.lock
ARG TORCH_INDEX
ARG TORCH
# Without the tests of torch's C++ library, and the compilers that only its own build needs. What is left is imported.
RUN build=$(basename "${TORCH_INDEX}") \
    && case "${build}" in cpu|cu[0-9]*|rocm[0-9]*|xpu) ;; *) build= ;; esac \
    && if [ -n "${build}" ] && ! /opt/venv/bin/pip index versions --pre --index-url "${TORCH_INDEX}" torch \
         | grep -qF "+${build}"; then \
         echo "TORCH_INDEX: ${TORCH_INDEX} has no torch for ${build}" >&2; exit 1; fi \
    && /opt/venv/bin/pip install --no-cache-dir --index-url "${TORCH_INDEX}" ${TORCH} \
    && installed=$(/opt/venv/bin/python -c "from importlib.metadata import version; print(version('torch'))") \
    && if [ -n "${build}" ] && [ "${installed#*+}" != "${build}" ]; then \
         echo "torch ${installed} is not the build of ${TORCH_INDEX}" >&2; exit 1; fi \
    && (cd /opt/venv/lib/python3*/site-packages/torch && rm -rf test bin/test_* bin/protoc*) \
    && /opt/venv/bin/python -c \
         "import torch, importlib.util; importlib.util.find_spec('torchvision') and __import__('torchvision')"
COPY scripts/image-*.lock /locks/
ARG MODELSERVER_EXTRAS
RUN for extra in $(echo "${MODELSERVER_EXTRAS}" | tr ',' ' '); do \
      lock="/locks/image-${extra}.lock"; \
      if [ ! -f "${lock}" ]; then echo "MODELSERVER_EXTRAS: there is no ${lock}" >&2; exit 1; fi; \
      set -- "$@" -r "${lock}"; \
    done; \
    if [ $# -gt 0 ]; then /opt/venv/bin/pip install --no-cache-dir --require-hashes "$@"; fi

FROM environment AS server
COPY --from=wheel /wheels /wheels
# Scripts name the interpreter that they are installed by.
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --prefix /server /wheels/*.whl \
    && export PYTHONPATH="$(echo /server/lib/python3*/site-packages)" \
    && /opt/venv/bin/pip check \
    && /opt/venv/bin/python -m modelserver.tools.aliases install /server/bin

# The bill of materials: all Python packages of the image.
FROM server AS materials
RUN python -m venv /cyclonedx \
    && /cyclonedx/bin/pip install --no-cache-dir cyclonedx-bom==7.5.0 \
    && cp -a /server/. /opt/venv \
    && /cyclonedx/bin/cyclonedx-py environment --output-reproducible --output-file /sbom.cdx.json /opt/venv/bin/python

FROM ${BASE}
# Group 0 may do what the owner may: OpenShift runs containers as a user without a name, in that group.
RUN useradd --uid 1000 --user-group --create-home --home-dir /home/model-server model-server \
    && mkdir /home/model-server/model-store /home/model-server/logs \
    && chown -R 1000:0 /home/model-server \
    && chmod -R g=u /home/model-server
COPY --from=environment /opt/venv /opt/venv
COPY --from=server /server /opt/venv
COPY --from=materials /sbom.cdx.json /opt/venv/sbom.cdx.json
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/home/model-server \
    USER=model-server \
    PYTHONUNBUFFERED=1
WORKDIR /home/model-server
COPY --chown=1000:0 scripts/container.properties config.properties
# For what a configuration mounted in its place does not set.
COPY scripts/container.properties /etc/modelserver.properties
COPY --chown=1000:0 model_store/mnist.mar model-store/mnist.mar
# By number, so that Kubernetes can tell that it is not root.
USER 1000:1000

# Inference, management, metrics, inference and management over gRPC. Management and metrics listen on the
# container's loopback unless told otherwise.
EXPOSE 8080 8081 8082 7070 7071
STOPSIGNAL SIGTERM
# Asks what needs no token, where the server says that it listens.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
    CMD ["python", "-m", "modelserver.tools.container.healthcheck"]
# dumb-init is process 1: a signal reaches the server from the first moment on, and what the children of ended
# workers leave behind is reaped. The entry point becomes modelserver --foreground.
ENTRYPOINT ["dumb-init", "--single-child", "--", "python", "-m", "modelserver.tools.container"]
LABEL org.opencontainers.image.title="modelserver" \
      org.opencontainers.image.description="A model server for PyTorch with batching built in and TorchServe's APIs" \
      org.opencontainers.image.licenses="Apache-2.0"

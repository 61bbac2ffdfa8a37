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

ARG PYTHON=3.12-slim-bookworm
# Where torch and torchvision come from, beside the package index: the builds without CUDA are a tenth as large.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

FROM python:${PYTHON} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY handlers handlers
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON} AS environment
ARG TORCH_INDEX
COPY --from=wheel /wheels /wheels
# A build of that index, 2.8.0+cpu, ranks above the package index's 2.8.0.
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --extra-index-url "${TORCH_INDEX}" "$(echo /wheels/*.whl)[torch]"

FROM python:${PYTHON}
RUN useradd --uid 1000 --user-group --create-home --home-dir /home/model-server model-server
COPY --from=environment /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1
WORKDIR /home/model-server
COPY --chown=1000:1000 scripts/container.properties config.properties
COPY --chown=1000:1000 model_store/mnist.mar model-store/mnist.mar
# By number, so that Kubernetes can tell that it is not root.
USER 1000:1000

# Inference, management, metrics, inference and management over gRPC. Management and metrics listen on the
# container's loopback unless told otherwise.
EXPOSE 8080 8081 8082 7070 7071
STOPSIGNAL SIGTERM
# Finds the server's address itself and asks what needs no token.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
    CMD ["python", "-m", "modelserver.container.healthcheck"]
# Becomes modelserver --start --foreground, as process 1.
ENTRYPOINT ["python", "-m", "modelserver.container"]

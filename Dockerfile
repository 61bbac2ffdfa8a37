# modelserver with the digit model, inference on port 8080:
#
#   docker build -t modelserver .
#   docker run --rm -p 8080:8080 modelserver
#   curl -T examples/mnist/digit-2.png localhost:8080/predictions/mnist
#
# Paths and user are those of TorchServe's image. Arguments of `docker run` are flags of modelserver.

ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY handlers handlers
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON} AS environment
COPY --from=wheel /wheels /wheels
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir /wheels/*.whl

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

# Inference, management, metrics; the last two listen on the container's loopback unless told otherwise.
EXPOSE 8080 8081 8082
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/ping', timeout=4)"]
ENTRYPOINT ["modelserver", "--start", "--foreground"]

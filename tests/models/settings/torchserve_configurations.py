"""The keys and values of every configuration file in TorchServe's repository, by the file's path there.

Files that it had once are among them, those of its build (``gradle``, ``log4j``) are not.
"""

from typing import Final

_HTTP: Final = "inference_address=http://{host}:8080\nmanagement_address=http://{host}:8081\n"
_OPEN: Final = _HTTP.format(host="0.0.0.0")
_LOOPBACK: Final = _HTTP.format(host="127.0.0.1")
_OPEN_3: Final = f"{_OPEN}metrics_address=http://0.0.0.0:8082\n"
_LOOPBACK_3: Final = f"{_LOOPBACK}metrics_address=http://127.0.0.1:8082\n"
_THREADS: Final = "number_of_netty_threads=32\njob_queue_size=1000\n"
_STORES: Final = "model_store=/home/model-server/model-store\nworkflow_store=/home/model-server/wf-store\n"
_PACKAGES: Final = "enable_envvars_config=true\ninstall_py_dep_per_model=true\n"
_HTTPS: Final = """
inference_address=https://127.0.0.1:8443
management_address=https://127.0.0.1:8444
metrics_address=https://127.0.0.1:8445
"""
_TEST_HTTPS: Final = f"{_HTTPS}private_key_file=resources/key.pem\ncertificate_file=resources/certs.pem\n"
_JAVA_TEST: Final = """
model_store=../archive/src/test/resources/models
async_logging=true
default_response_timeout=120
unregister_model_timeout=120
private_key_file=src/test/resources/key.pem
certificate_file=src/test/resources/certs.pem
max_request_size=10485760
"""
_BIG_BODIES: Final = "max_response_size=2047093252\nmax_request_size=2047093252\nenable_envvars_config=true\n"
_LONG_TIMEOUTS: Final = "default_response_timeout=300\nunregister_model_timeout=300\n"
_PACKAGES_ONLY: Final = "install_py_dep_per_model=true\n"
_WORKFLOWS: Final = "workflow_store=../archive/src/test/resources/workflows\n"
_CLUSTER: Final = r"""
NUM_WORKERS=1
number_of_gpu=1
number_of_netty_threads=32
job_queue_size=1000
model_store=/home/model-server/shared/model-store
model_snapshot={"name":"startup.cfg","modelCount":2,"models":{"squeezenet1_1":{"1.0":{"defaultVersion":true,\
"marName":"squeezenet1_1.mar","minWorkers":3,"maxWorkers":3,"batchSize":1,"maxBatchDelay":100,\
"responseTimeout":120}},"mnist":{"1.0":{"defaultVersion":true,"marName":"mnist.mar","minWorkers":5,\
"maxWorkers":5,"batchSize":1,"maxBatchDelay":200,"responseTimeout":60}}}}
"""
_ONE_MODEL: Final = (
    'model_snapshot={"name":"startup.cfg","modelCount":1,"models":{"mnist":{"1.0":{"defaultVersion":true,'
    '"marName":"mnist.mar","minWorkers":1,"maxWorkers":5,"batchSize":5,"maxBatchDelay":200,'
    '"responseTimeout":60}}}}'
)
_SHARED_STORE: Final = "model_store=/home/model-server/shared/model-store\n"
_FEW_THREADS: Final = "NUM_WORKERS=1\nnumber_of_netty_threads=4\njob_queue_size=10\n"
_KFSERVING: Final = f"service_envelope=kfserving\n{_ONE_MODEL}"
_LARGE: Final = f"{_PACKAGES}load_models=all\nmax_response_size=655350000\n"


def _models(name: str, mar: str, settings: str) -> str:
    """The key ``models`` as these files write it, over several lines."""
    values = ",\\\n".join(
        f'        "{key}": {value}' for key, value in (p.split("=") for p in settings.split())
    )
    begin = f'models={{\\\n  "{name}": {{\\\n    "1.0": {{\\\n        "defaultVersion": true,\\\n'
    return f'{begin}        "marName": "{mar}",\\\n{values}\\\n    }}\\\n  }}\\\n}}\n'


CONFIGURATIONS: Final = {
    "benchmarks/config.properties": f"{_OPEN}{_THREADS}vmargs=-Xmx4g -XX:+ExitOnOutOfMemoryError\n"
    "prefer_direct_buffer=True",
    "benchmarks/config/config.properties": f"{_OPEN}{_THREADS}vmargs=-Xmx4g -XX:+ExitOnOutOfMemoryError "
    f"-XX:+HeapDumpOnOutOfMemoryError\nprefer_direct_buffer=True\n{_LONG_TIMEOUTS}{_PACKAGES_ONLY}",
    "benchmarks/config_kf.properties": f"{_OPEN}service_envelope=kserve\n{_THREADS}",
    "benchmarks/properties/config_kf.properties": f"{_OPEN}service_envelope=kserve\n{_THREADS}",
    "config.properties": "system_metrics_cmd=ts/metrics/sessions.py\nmetrics_config=ts/configs/metrics.yaml",
    "benchmarks/config_template.properties": _LOOPBACK,
    "cpp/test/resources/examples/babyllama/babyllama_handler/config.properties": (
        "default_response_timeout=300000"
    ),
    "docker/config.properties": f"{_OPEN_3}{_THREADS}{_STORES}",
    "docker/advanced-dockerfiles/config.properties": f"model_store=/opt/ml/model\nload_models=ALL\n{_OPEN}"
    "decode_input_request=false",
    "examples/Huggingface_Largemodels/config.properties": f"{_OPEN_3}{_LARGE}default_response_timeout=6000\n"
    "number_of_gpu=1\nmodel_store=/home/ubuntu/model_store\n"
    r'model_snapshot={"name":"startup.cfg","modelCount":1,"models":{"bloom\":{"1.0":{"defaultVersion":true,'
    '"marName":"bloom.mar","minWorkers":1,"maxWorkers":1,"batchSize":1,"maxBatchDelay":200,'
    '"responseTimeout":6000}}}}',
    "examples/Huggingface_Transformers/Image_classification_docker/HF-only/scripts/config.properties": "'''\n"
    "References:\nhttps://github.com/pytorch/serve/blob/master/docs/configuration.md\n'''\n"
    f'{_OPEN}{_THREADS}model_store=model-store\nload_models="standalone"\ndefault_workers_per_model=1\n'
    f"{_PACKAGES_ONLY}",
    "examples/Huggingface_Transformers/Image_classification_docker/scripts/config.properties": "'''\n"
    "References:\nhttps://github.com/pytorch/serve/blob/master/docs/configuration.md\n'''\n"
    "Keep in mind that the same should reflect\n"
    f"{_OPEN}{_THREADS}model_store=model-store\nload_models=standalone\ndefault_workers_per_model=1\n"
    "install_py_dep_per_model=true",
    "examples/LLM/llama/chat_app/docker/config.properties": "metrics_mode=prometheus\n"
    f"model_metrics_auto_detect=true\n{_OPEN_3}{_THREADS}{_STORES}max_response_size=655350000",
    "examples/LLM/llama/ov_chat_app/docker/config.properties": "metrics_mode=prometheus\n"
    f"model_metrics_auto_detect=true\n{_OPEN_3}{_THREADS}{_STORES}max_response_size=655350000",
    "examples/LLM/llama/ov_chat_app/docker/llm/config.properties": f"{_LOOPBACK_3}min_workers=1\n"
    "max_response_size=655350000\nmax_workers=4\ndefault_workers_per_model=1\ncpu_launcher_enable=true",
    "examples/LLM/llama/ov_chat_app/docker/sd/config.properties": f"{_LOOPBACK_3}min_workers=1\n"
    "max_response_size=655350000\nmax_workers=4\ndefault_workers_per_model=1\nipex_enable=true\n"
    "cpu_launcher_enable=true",
    "examples/LLM/llama2/chat_app/docker/config.properties": "metrics_mode=prometheus\n"
    f"model_metrics_auto_detect=true\n{_OPEN_3}{_THREADS}{_STORES}",
    "examples/Language_Translation/English_to_French_Translation/config.properties": _PACKAGES_ONLY,
    "examples/Workflows/nmt_tranformers_pipeline/config.properties": f"{_LONG_TIMEOUTS}{_PACKAGES_ONLY}",
    "examples/Workflows/nmt_transformers_pipeline/config.properties": "default_response_timeout=300\n"
    "unregister_model_timeout=300\ninstall_py_dep_per_model=true",
    "examples/asr_rnnt_emformer/config.properties": f"{_OPEN_3}{_THREADS}{_STORES}"
    "install_py_dep_per_model=true",
    "examples/cloud_storage_stream_inference/config.properties": "load_models=all\n"
    + _models(
        "my_tc",
        "BERTSeqClassification.mar",
        "minWorkers=10 maxWorkers=1000 batchSize=2000 maxBatchDelay=5000 responseTimeout=1200",
    ),
    "examples/custom_metrics/config.properties": "metrics_mode=prometheus\nmodel_metrics_auto_detect=true\n"
    "metrics_config=examples/custom_metrics/metrics.yaml\n"
    + _models("mnist", "mnist.mar", "minWorkers=1 maxWorkers=1"),
    "examples/deepspeed_mii/config.properties": f"{_OPEN_3}{_LARGE}model_store=/mnt/models/model_store",
    "examples/diffusers/config.properties": f"{_OPEN_3}{_LARGE}model_store=/mnt/models/model_store\n"
    'model_snapshot={"name":"startup.cfg","modelCount":1,"models":{"stable-diffusion":{"1.0":{'
    '"defaultVersion":true,"marName":"stable-diffusion.mar","minWorkers":1,"maxWorkers":1,"batchSize":1,'
    '"maxBatchDelay":200,"responseTimeout":600}}}}',
    "examples/getting_started/config.properties": f"model_metrics_auto_detect=true\n{_OPEN_3}{_THREADS}"
    f"{_STORES}disable_system_metrics=true",
    "examples/image_classifier/mnist/config.properties": "enable_envvars_config=true",
    "examples/image_classifier/near_real_time_video/config.properties": _models(
        "resnet-18",
        "resnet-18.mar",
        "minWorkers=1 maxWorkers=4 batchSize=4 maxBatchDelay=5000 responseTimeout=120",
    ),
    "examples/large_models/Huggingface_accelerate/config.properties": f"{_LOOPBACK_3}{_LARGE}"
    "number_of_gpu=1\ndefault_response_timeout=6000\nmodel_store=/home/ubuntu/model_store",
    "examples/large_models/Huggingface_accelerate/llama2/config.properties": f"{_OPEN_3}{_PACKAGES}",
    "examples/large_models/CodeGen/config.properties": "ipex_enable=true\ncpu_launcher_enable=true",
    "examples/large_models/deepspeed_mii/config.properties": f"{_LOOPBACK_3}{_LARGE}"
    "model_store=/mnt/models/model_store",
    "examples/large_models/diffusion_fast/config.properties": f"{_LOOPBACK_3}max_response_size=655350000",
    "examples/large_models/inferentia2/llama2/config.properties": "install_py_dep_per_model=true",
    "examples/large_models/llama/config.properties": f"{_OPEN_3}{_LARGE}number_of_gpu=1\n"
    "default_response_timeout=6000\n"
    "model_store=/data/home/hamidnazeri/serve/examples/large_models/llama/model_store/",
    "examples/large_models/vllm/config.properties": f"{_LOOPBACK_3}enable_envvars_config=true",
    "examples/nmt_transformer/config.properties": f"{_LONG_TIMEOUTS}{_PACKAGES_ONLY}",
    "examples/sockeye_translate/config/config.properties": "vmargs=-Xmx128m -XX:-UseLargePages\n"
    f"model_store=/opt/ml/model\n{_OPEN}",
    "examples/torch_tensorrt/torchcompile/T5/config.properties": f"{_LOOPBACK_3}{_PACKAGES}",
    "examples/zero_copy_model_sharing/config.properties": f"{_OPEN_3}{_LARGE}number_of_gpu=0\n"
    "model_store=/home/ubuntu/model_store",
    "frontend/server/src/test/resources/config.properties": f"{_HTTPS}{_JAVA_TEST}load_models=noop.mar\n"
    "enable_envvars_config=true",
    "frontend/server/src/test/resources/config_port.properties": "inference_address=https://127.0.0.1:42000\n"
    "management_address=unix:/tmp/management.sock\nmodel_store=../modelarchive/src/test/resources/models\n"
    "enable_envvars_config=true",
    "frontend/server/src/test/resources/config_snapshot.properties": f"{_HTTPS}{_JAVA_TEST}{_BIG_BODIES}"
    f"{_WORKFLOWS}load_models=noop.mar\nmetrics_config=src/test/resources/metrics_default.yaml\n"
    "model_api_enabled=true",
    "frontend/server/src/test/resources/config_test_cpp.properties": f"{_JAVA_TEST}load_models=noop\n"
    + _models(
        "mnist_scripted",
        "mnist_scripted.mar",
        'minWorkers=1 maxWorkers=4 batchSize=8 maxBatchDelay=100 responseTimeout=120 runtimeType="LSP"',
    ),
    "frontend/server/src/test/resources/config_test_env.properties": _JAVA_TEST
    + "inference_address=https://127.0.0.1:8443\nmanagement_address=unix:/tmp/management.sock\n"
    "metrics_config=src/test/resources/metrics_default.yaml\nload_models=noop-v0.1,noop-v1.0\n"
    + _models(
        "vgg16", "vgg16.mar", "minWorkers=1 maxWorkers=4 batchSize=8 maxBatchDelay=100 responseTimeout=120"
    ),
    "frontend/server/src/test/resources/config_test_workflow.properties": _JAVA_TEST
    + "inference_address=https://127.0.0.1:8443\nmanagement_address=unix:/tmp/management.sock\n"
    "metrics_address=https://127.0.0.1:8445\nload_models=noop-v0.1,noop-v1.0\nmodel_api_enabled=true\n"
    "metrics_config=src/test/resources/metrics_default.yaml\n"
    + _models(
        "noop", "noop.mar", "minWorkers=1 maxWorkers=1 batchSize=4 maxBatchDelay=100 responseTimeout=120"
    ),
    "frontend/server/src/test/resources/config_workflow.properties": f"{_HTTPS}{_JAVA_TEST}{_BIG_BODIES}"
    f"{_WORKFLOWS}load_models=noop.mar\ndisable_token_authorization=false\nenable_model_api=false",
    "kubernetes/AKS/config.properties": f"{_OPEN_3}enable_metrics_api=true\nmetrics_format=prometheus\n"
    f"{_CLUSTER}",
    "kubernetes/EKS/config.properties": f"{_OPEN_3}{_CLUSTER}",
    "kubernetes/GKE/config.properties": f"{_OPEN_3}enable_metrics_api=true\nmetrics_mode=prometheus\n"
    f"{_CLUSTER}",
    "kubernetes/MicrosoftAzure/config.properties": f"{_OPEN}{_CLUSTER}",
    "kubernetes/config.properties": f"{_OPEN}{_CLUSTER}",
    "kubernetes/kfserving/config.properties": "inference_address=http://0.0.0.0:8085\n"
    "management_address=http://0.0.0.0:8085\nmetrics_address=http://0.0.0.0:8082\n"
    f"grpc_inference_port=7070\ngrpc_management_port=7071\n{_PACKAGES}enable_metrics_api=true\n"
    f"metrics_format=prometheus\n{_FEW_THREADS}{_SHARED_STORE}{_ONE_MODEL}",
    "kubernetes/kf_predictor_docker/config_kf.properties": "inference_address=http://127.0.0.1:8085\n"
    "management_address=http://127.0.0.1:8081\ndefault_workers_per_model = 1\nmodel_store=model_store\n"
    f"{_FEW_THREADS}{_KFSERVING}",
    **dict.fromkeys(
        (
            "kubernetes/kfserving/kf_predictor_docker/config_kf.properties",
            "kubernetes/kfserving_wrapper/config_parse/config.properties",
        ),
        "inference_address=http://0.0.0.0:8085\nmanagement_address=http://0.0.0.0:8081\n"
        f"{_FEW_THREADS}{_SHARED_STORE}{_KFSERVING}",
    ),
    "kubernetes/kserve/config.properties": "inference_address=http://127.0.0.1:8085\n"
    "management_address=http://127.0.0.1:8085\nmetrics_address=http://127.0.0.1:8082\n"
    f"grpc_inference_port=7070\ngrpc_management_port=7071\n{_PACKAGES}enable_metrics_api=true\n"
    f"metrics_mode=prometheus\n{_FEW_THREADS}load_models=all\n{_SHARED_STORE}{_ONE_MODEL}",
    "kubernetes/tests/docker/config.properties": f"{_OPEN_3}{_THREADS}{_STORES}"
    "system_metrics_cmd=ts/metrics/metric_collector.py --gpu 0",
    "test/config_ipex.properties": f"{_LOOPBACK}ipex_enable=true\ncpu_launcher_enable=true",
    "test/config_kf.properties": f"{_LOOPBACK_3}service_envelope=kfserving",
    "test/config_ts.properties": f"{_LOOPBACK_3}install_py_dep_per_model=true",
    "test/pytest/test_data/torch_compile/config.properties": f"{_OPEN_3}load_models=half_plus_two.mar\n"
    "model_store=/home/model-server/model-store\nmin_workers=1\nmax_workers=1\ndefault_workers_per_model=1\n"
    "service_envelope=json",
    "test/resources/config.properties": f"{_TEST_HTTPS}install_py_dep_per_model=true\n"
    "disable_token_authorization=true",
    "test/resources/config_https.properties": "inference_address=https://127.0.0.1:8080\n"
    "management_address=https://127.0.0.1:8081\nprivate_key_file=../resources/key.pem\n"
    "certificate_file=../resources/certs.pem",
    "test/resources/config_kf.properties": f"{_TEST_HTTPS}service_envelope=kserve\n"
    "disable_token_authorization=true",
    "test/resources/config_kfv2.properties": f"{_TEST_HTTPS}service_envelope=kservev2\n"
    "disable_token_authorization=true",
    "test/resources/config_model_mode.properties": "model_control_mode=none",
    "test/resources/config_token.properties": "token_expiration_min=0.25\ndisable_token_authorization=false",
    "test/resources/config_token_priority.properties": "enable_envvars_config=true\n"
    "disable_token_authorization=false",
    "test/resources/config_token_workflow.properties": "",
    "ts/configs/sagemaker_config.properties": "vmargs=-XX:-UseContainerSupport\n"
    "model_store=$$SAGEMAKER_MODEL_STORE$$\n"
    "inference_address=http://0.0.0.0:$$SAGEMAKER_BIND_TO_PORT$$\n"
    "management_address=http://0.0.0.0:$$SAGEMAKER_BIND_TO_PORT$$\n"
    "default_response_timeout=$$SAGEMAKER_RESPONSE_TIMEOUT$$\n"
    "unregister_model_timeout=$$SAGEMAKER_RESPONSE_TIMEOUT$$\n"
    "default_workers_per_model=$$SAGEMAKER_NUM_MODEL_WORKERS$$\n"
    "default_service_handler=$$SAGEMAKER_HANDLER$$\nasync_logging=true\n"
    "max_response_size=$$SAGEMAKER_MAX_RESPONSE_SIZE$$\nmax_request_size=$$SAGEMAKER_MAX_REQUEST_SIZE$$\n"
    "decode_input_request=false",
    "ts/kfserving_wrapper/config_parse/config.properties": f"{_OPEN}{_FEW_THREADS}{_SHARED_STORE}"
    f"{_ONE_MODEL}",
}

ENVIRONMENT: Final = {
    "SAGEMAKER_MODEL_STORE": "/opt/ml/model",
    "SAGEMAKER_BIND_TO_PORT": "8080",
    "SAGEMAKER_RESPONSE_TIMEOUT": "60",
    "SAGEMAKER_NUM_MODEL_WORKERS": "1",
    "SAGEMAKER_HANDLER": "handler_service.py:handle",
    "SAGEMAKER_MAX_RESPONSE_SIZE": "6553500",
    "SAGEMAKER_MAX_REQUEST_SIZE": "6553500",
}
"""What SageMaker's file reads."""

REFUSED: Final = {
    "examples/stateful/config.properties": "grpc_inference_port=http://127.0.0.1:7070",
    "frontend/server/src/test/resources/config_invalid_port.properties": (
        "inference_address=https://127.0.0.1:65536"
    ),
}
"""Those that TorchServe 0.12 does not serve with either, and the line that is to blame."""

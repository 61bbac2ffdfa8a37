import pytest
import torch

from modelserver_handlers.networks.int8 import is_able

# Without it, networks compute in bfloat16, but are not optimised for it.
HAS_BF16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="oneDNN has no bfloat16 on this processor")
needs_int8 = pytest.mark.skipif(not is_able(), reason="this processor has no AVX2")

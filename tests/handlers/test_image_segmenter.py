import io

import pytest
import torch
from PIL import Image
from tests.handlers.parts import network
from torchvision import transforms

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.image_segmenter import ImageSegmenter
from modelserver_handlers.networks.modules import import_file
from modelserver_handlers.pictures.classic import MEAN, STD

SOURCE = network(
    "TinySegmentation",
    "{'out': self.layer(pictures), 'aux': pictures}",
    "pictures",
    layer="nn.Conv2d(3, 4, 3, padding=1)",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What an unpacked archive holds: an eager network, and the same as TorchScript."""
    folder = tmp_path_factory.mktemp("segmentation")
    (folder / "tiny_segmentation.py").write_text(SOURCE)
    torch.manual_seed(3)
    model = import_file(folder / "tiny_segmentation.py").TinySegmentation().eval()
    torch.save(model.state_dict(), folder / "weights.pth")
    torch.jit.script(model).save(str(folder / "scripted.pt"))
    return folder


@pytest.fixture
def make(folder, make_context):
    def made(config=None, **files):
        files = files or {"modelFile": "tiny_segmentation.py", "serializedFile": "weights.pth"}
        handler = ImageSegmenter()
        handler.initialize(make_context(folder, config, **files))
        return handler

    return made


def expected(handler, file, resize=256, crop=224):
    """Height x width x 2 by torchvision's transforms and the network alone."""
    steps = [transforms.Resize(resize), transforms.CenterCrop(crop), transforms.ToTensor()]
    prepare = transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])
    picture = prepare(Image.open(io.BytesIO(file)).convert("RGB")).unsqueeze(0)
    with torch.inference_mode():
        scores = handler.model(picture)["out"].softmax(dim=1)[0]
    return torch.stack((scores.argmax(dim=0).float(), scores.amax(dim=0)), dim=2)


@pytest.mark.parametrize(
    ("files", "sizes"),
    [
        ({"modelFile": "tiny_segmentation.py", "serializedFile": "weights.pth"}, (80, 64)),
        ({"serializedFile": "scripted.pt"}, (80, 64)),
        ({"serializedFile": "scripted.pt"}, ()),
    ],
    ids=["eager", "torchscript", "ImageNet's sizes"],
)
def test_numbers_are_the_networks(files, sizes, make, begin, pictures):
    config = {"handler": {"resize": sizes[0], "crop": sizes[1]}} if sizes else None
    handler = make(config, **files)
    begin(handler.context, len(pictures))
    answers = handler.handle([{"data": file} for file in pictures], handler.context)

    assert len(answers) == len(pictures)
    for answer, file in zip(answers, pictures, strict=True):
        result, reference = torch.tensor(answer), expected(handler, file, *sizes)
        assert result.shape == reference.shape
        assert (result[..., 0] == reference[..., 0]).all()
        assert torch.allclose(result[..., 1], reference[..., 1], atol=1e-5, rtol=0)


def test_bare_tensors_are_taken(make):
    logits = torch.zeros(2, 3, 4, 5)
    logits[:, 2] = 1

    answers = make().postprocess(logits)

    assert torch.tensor(answers).shape == (2, 4, 5, 2)
    assert answers[1][3][4] == pytest.approx([2.0, torch.tensor([0.0, 0.0, 1.0]).softmax(0)[2].item()])


def test_nothing_is_explained(make, begin, pictures):
    handler = make({"handler": {"resize": 40, "crop": 32}})
    begin(handler.context, explain="True")

    with pytest.raises(PredictionException, match="image_segmenter explains nothing") as refusal:
        handler.handle([pictures[0]], handler.context)
    assert refusal.value.error_code == 501

"""Handlers that bring transformers and ultralytics, made as those of TorchServe's examples are."""

import json
import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from tests.e2e.serving import Home, Server, archived, run_to_end, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not os.environ.get("MODELSERVER_LONG_TESTS"),
        reason="installs packages for a minute: only with MODELSERVER_LONG_TESTS=1",
    ),
]

# Models of Hugging Face are a folder of files, which their Auto classes read.
TEXTS = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from ts.torch_handler.base_handler import BaseHandler

class Sentiment(BaseHandler):
    def initialize(self, context):
        folder = context.system_properties["model_dir"]
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        self.initialized = True

    def preprocess(self, requests):
        texts = [request.get("data") or request.get("body") for request in requests]
        texts = [bytes(text).decode() if isinstance(text, (bytes, bytearray)) else text for text in texts]
        return self.tokenizer(texts, padding=True, return_tensors="pt")

    def inference(self, tokens):
        with torch.no_grad():
            return self.model(**tokens).logits

    def postprocess(self, logits):
        labels = self.model.config.id2label
        return [{"label": labels[int(row.argmax())], "logits": row.tolist()} for row in logits]
"""
MAKE_TEXTS = """
import json, sys
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertTokenizerFast
from pathlib import Path
import torch

folder = Path(sys.argv[1])
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "bad", "film", "good"]
(folder / "vocab.txt").write_text("\\n".join(words) + "\\n")
BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
torch.manual_seed(0)
size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=len(words), **size)).eval()
model.save_pretrained(folder)
read = AutoTokenizer.from_pretrained(folder)
for text in sys.argv[2:]:
    with torch.no_grad():
        print(json.dumps(model(**read([text], return_tensors="pt")).logits[0].tolist()))
"""

# This streams like TorchServe's examples: the texts of a batch are sent while all are generated.
STREAMED = """
from threading import Thread

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch
from ts.protocol.otf_message_handler import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler

class Streams(BaseHandler):
    def initialize(self, context):
        folder = context.system_properties["model_dir"]
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.initialized = True

    def preprocess(self, requests):
        texts = [bytes(request.get("body")).decode() for request in requests]
        return self.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)

    def inference(self, tokens):
        streamer = TextIteratorStreamerBatch(
            self.tokenizer, batch_size=len(tokens["input_ids"]), skip_prompt=True, skip_special_tokens=True
        )
        options = {"max_new_tokens": 12, "do_sample": False, "streamer": streamer}
        made = Thread(target=self.model.generate, kwargs={**tokens, **options})
        made.start()
        for texts in streamer:
            said = [each["text"] for each in texts]
            send_intermediate_predict_response(
                said, self.context.request_ids, "Intermediate Prediction success", 200, self.context
            )
        made.join()
        return [""] * len(tokens["input_ids"])

    def postprocess(self, texts):
        return texts
"""
MAKE_STREAMED = """
import json, sys
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
import torch

folder = Path(sys.argv[1])
words = ["<pad>", "<end>", *"a bad good old film was made here by them".split()]
whole = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))
whole.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="<pad>", eos_token="<end>").save_pretrained(folder)
torch.manual_seed(3)
size = {"n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 1.0}
ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **size, **ids)).save_pretrained(folder)
read = AutoTokenizer.from_pretrained(folder, padding_side="left")
model = GPT2LMHeadModel.from_pretrained(folder).eval()
tokens = read(sys.argv[2:], padding=True, return_tensors="pt", return_token_type_ids=False)
made = model.generate(**tokens, max_new_tokens=12, do_sample=False)[:, tokens["input_ids"].shape[1]:]
print(json.dumps([read.decode(each, skip_special_tokens=True) for each in made]))
"""

# This is like TorchServe's YOLOv8 example: another network and result in its own detector.
PICTURES = """
from collections import Counter
from pathlib import Path

import torch
from torchvision import transforms
from ts.torch_handler.object_detector import ObjectDetector
from ultralytics import YOLO

class Counts(ObjectDetector):
    image_processing = transforms.Compose(
        [transforms.Resize(64), transforms.CenterCrop(64), transforms.ToTensor()]
    )

    def initialize(self, context):
        self.device = torch.device("cpu")
        self.model = YOLO(Path(context.system_properties["model_dir"]) / "yolo.pt").to(self.device)
        self.initialized = True

    def postprocess(self, results):
        return [
            {"surest": float(boxes.conf.max()), **Counter(found.names[int(kind)] for kind in boxes.cls)}
            for found in results
            for boxes in [found.boxes]
        ]
"""
# Random weights are sure of nothing; with these, boxes show the 17th class, as surely as the picture says.
MAKE_PICTURES = """
import json, sys
import torch
from ultralytics import YOLO

torch.manual_seed(0)
model = YOLO("yolov8n.yaml")
for branch in model.model.model[-1].cv3:
    torch.nn.init.constant_(branch[-1].bias, -9.0)
    torch.nn.init.constant_(branch[-1].bias[16:17], 0.0)
    torch.nn.init.normal_(branch[-1].weight[16], std=1e4)
model.save(sys.argv[1])
pictures = torch.stack([torch.full((3, 64, 64), float(grey) / 255) for grey in sys.argv[2:]])
for found in YOLO(sys.argv[1])(pictures, verbose=False):
    print(json.dumps({"16": len(found.boxes), "surest": float(found.boxes.conf.max())}))
"""


@pytest.fixture(scope="module")
def with_packages(tmp_path_factory):
    """A Python that has the libraries, beside the torch of the tests."""
    folder = tmp_path_factory.mktemp("libraries")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
    python = folder / "venv" / "bin" / "python"
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    here = sysconfig.get_path("purelib")
    (packages / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    try:
        done = subprocess.run(
            [*pip, "transformers", "ultralytics"], capture_output=True, text=True, check=False, timeout=180
        )
    except subprocess.TimeoutExpired:
        pytest.skip("transformers and ultralytics are not installed within three minutes")
    if done.returncode:
        pytest.skip(f"transformers and ultralytics cannot be installed: {done.stderr[-300:]}")
    return python


@pytest.fixture
def home(with_packages, tmp_path):
    """Where that Python runs servers and scripts, which ask nobody for files."""
    offline = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
    home = Home(tmp_path / "home", {**offline, "YOLO_CONFIG_DIR": str(tmp_path)})
    home.python = with_packages
    return home


def made(home, script, *arguments):
    command = [home.python, "-c", script, *map(str, arguments)]
    done = run_to_end(command, home.path, home.environment, 120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def answers(home, folder, handler, files, bodies):
    """What a model of this handler and these files answers to two bodies, which were one batch."""
    store = folder / "store"
    archived(store, "m", handler, extra_files=str(files))
    window = {"batch_size": len(bodies), "max_batch_delay": 10_000, "batch_policy": "window"}
    with serving(Server(home, store)) as server, ThreadPoolExecutor(len(bodies)) as senders:
        server.registered("m.mar", startup_timeout=100, **window)
        responses = list(senders.map(lambda body: server.predict("m", body), bodies))
    assert [(each.status_code, each.headers["x-batch-size"]) for each in responses] == [(200, "2")] * 2
    return responses


def test_transformers_classifier_is_served(home, tmp_path):
    """A small random BERT has the same results as alone; texts of different lengths are one batch."""
    files, texts = tmp_path / "files", ("a good film", "bad")
    files.mkdir()
    expected = [json.loads(line) for line in made(home, MAKE_TEXTS, files, *texts)]

    responses = [
        each.json() for each in answers(home, tmp_path, TEXTS, files, [text.encode() for text in texts])
    ]

    assert [each["logits"] for each in responses] == [pytest.approx(logits, abs=1e-5) for logits in expected]
    assert {each["label"] for each in responses} <= {"LABEL_0", "LABEL_1"}


def test_each_client_gets_its_text_from_transformers_streamer(home, tmp_path):
    """``TextIteratorStreamerBatch`` in ``generate``: each client gets the text of its own prompt in pieces,
    the same as without a server, though the texts of a batch end at different times.
    """
    files, prompts = tmp_path / "files", ("a good old film", "bad")
    files.mkdir()
    (line,) = made(home, MAKE_STREAMED, files, *prompts)
    expected = json.loads(line)
    assert len({len(text.split()) for text in expected}) == 2

    responses = answers(home, tmp_path, STREAMED, files, [prompt.encode() for prompt in prompts])

    assert [each.text.split() for each in responses] == [text.split() for text in expected]


def test_ultralytics_detector_is_served(home, tmp_path):
    """YOLOv8 gets pictures of one size as one tensor, and detects the same objects as without a server."""
    files, greys = tmp_path / "files", (60, 200)
    files.mkdir()
    # The library prints of its settings before.
    lines = made(home, MAKE_PICTURES, files / "yolo.pt", *greys)[-2:]
    expected = [json.loads(line) for line in lines]
    assert expected[0]["surest"] != pytest.approx(expected[1]["surest"], abs=1e-4)

    responses = answers(home, tmp_path, PICTURES, files, [picture(grey) for grey in greys])

    assert [each.json() for each in responses] == [pytest.approx(each, abs=1e-5) for each in expected]


def picture(grey):
    file = BytesIO()
    Image.new("RGB", (64, 64), (grey, grey, grey)).save(file, "PNG")
    return file.getvalue()

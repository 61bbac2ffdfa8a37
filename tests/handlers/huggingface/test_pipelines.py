"""Pipelines of transformers, with batches: the answers are those of the pipelines alone."""

import base64
import io

import numpy
import pytest
from PIL import Image
from tests import tiny_models
from tests.handlers.huggingface.bench import Bench, wav

from modelserver_handlers.errors import ModelLoadError, PredictionException
from modelserver_handlers.huggingface import Embeddings, TaskPipeline

pytestmark = pytest.mark.slow

LONG = " ".join(tiny_models.TEXTS * 10)


def pipeline(task, folder):
    return pytest.importorskip("transformers").pipeline(task, model=str(folder))


def nearly(value):
    """With numbers that may differ by 1e-5."""
    if isinstance(value, dict):
        return {name: nearly(each) for name, each in value.items()}
    if isinstance(value, list):
        return [nearly(each) for each in value]
    return pytest.approx(float(value), abs=1e-5) if hasattr(value, "dtype") or type(value) is float else value


@pytest.fixture(autouse=True)
def library():
    pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("head", "task", "parameters"),
    [
        ("ForSequenceClassification", "text-classification", {"top_k": 2}),
        ("ForTokenClassification", "token-classification", {"aggregation_strategy": "simple"}),
        ("ForMaskedLM", "fill-mask", {"top_k": 3}),
    ],
)
def test_texts_are_answered_as_by_the_pipeline(tmp_path, head, task, parameters):
    tiny_models.bert(tmp_path, head)
    bench = Bench(TaskPipeline, tmp_path, task=task).load()
    texts = [f"[MASK] {text}" for text in (tiny_models.TEXTS[0], "fox", f"the {LONG}")]
    alone = pipeline(task, tmp_path)
    usual = {"top_k": 1} if task == "text-classification" else {}
    cut = {"tokenizer_kwargs": {"truncation": True}} if task == "fill-mask" else {"truncation": True}
    cut = {} if task == "token-classification" else cut

    answers = bench.send(
        texts[0], texts[1].encode(), {"inputs": texts[2]}, {"inputs": texts[0], "parameters": parameters}
    )

    assert answers[:3] == nearly([alone(text, **usual, **cut) for text in texts])
    assert answers[3] == nearly(alone(texts[0], **parameters))
    assert type(answers[0][0]["score"]) is float


def test_wrong_rows_are_rejected_alone(tmp_path):
    tiny_models.bert(tmp_path, "ForSequenceClassification")
    bench = Bench(TaskPipeline, tmp_path, task="text-classification").load()

    answers = bench.send(
        "fox",
        b"\xff",
        {"inputs": ["fox"]},
        {"inputs": "fox", "parameters": {"top_k": 0}},
        {"inputs": "fox", "parameters": {"padding": "x"}},
        {"inputs": {"text": "fox", "text_pair": "dog"}},
    )

    assert [type(answer) for answer in answers] == [list, str, str, str, str, list]
    assert answers[3] == "parameters: top_k must be a number from 1 to 1000"
    assert answers[4] == "parameters: padding is not one of top_k"


def test_text_without_a_mask_is_refused(tmp_path):
    """With the pipeline's reason; the server tries the others of its batch alone."""
    tiny_models.bert(tmp_path, "ForMaskedLM")
    bench = Bench(TaskPipeline, tmp_path, task="fill-mask").load()

    with pytest.raises(PredictionException, match="No mask_token") as caught:
        bench.send("no mask")

    assert caught.value.error_code == 400


def png(size, value):
    file = io.BytesIO()
    Image.effect_noise((size, size), value).convert("RGB").save(file, "PNG")
    return file.getvalue()


def test_pictures_are_answered_as_by_the_pipeline(tmp_path):
    """In bytes, or in base64 in JSON; a name is no picture, which would be opened or fetched."""
    tiny_models.vit(tmp_path)
    bench = Bench(TaskPipeline, tmp_path, task="image-classification").load()
    pictures = [png(8, 90), png(20, 50)]
    alone = pipeline("image-classification", tmp_path)

    answers = bench.send(
        pictures[0],
        {"inputs": base64.b64encode(pictures[1]).decode(), "parameters": {"top_k": 2}},
        {"inputs": "http://127.0.0.1:1/x.png"},
        b"none",
    )

    assert answers[0] == nearly(alone(Image.open(io.BytesIO(pictures[0])).convert("RGB")))
    assert answers[1] == nearly(alone(Image.open(io.BytesIO(pictures[1])).convert("RGB"), top_k=2))
    assert {each["label"] for each in answers[0]} == {"cat", "dog", "fox"}
    assert answers[2] == "the text is not a picture in base64"
    assert "not a picture in a format" in answers[3]


@pytest.mark.parametrize(
    ("head", "task", "more"),
    [
        ("ForSequenceClassification", "audio-classification", {"top_k": 5}),
        ("ForCTC", "automatic-speech-recognition", {}),
    ],
)
def test_sound_is_answered_as_by_the_pipeline(tmp_path, head, task, more):
    tiny_models.wav2vec2(tmp_path, head)
    bench = Bench(TaskPipeline, tmp_path, task=task).load()
    noise = numpy.random.default_rng(0).integers(-9000, 9000, (3, 900)) / 32768
    sounds = [noise[0], noise[1], noise[2][:400]]
    alone = pipeline(task, tmp_path)

    answers = bench.send(*[wav(each * 32768, rate=1000) for each in sounds], b"none")

    assert answers[:3] == nearly([alone(each.astype("float32"), **more) for each in sounds])
    assert {"text": ""} not in answers
    assert answers[3].startswith("the sound cannot be read")


def test_detection_is_that_of_the_pipeline(tmp_path):
    tiny_models.yolos(tmp_path)
    bench = Bench(TaskPipeline, tmp_path, task="object-detection").load()
    pictures = [png(20, 90), png(20, 50), png(30, 70)]
    alone = pipeline("object-detection", tmp_path)
    answers = bench.send(
        *({"inputs": base64.b64encode(each).decode(), "parameters": {"threshold": 0.1}} for each in pictures)
    )
    expected = [alone(Image.open(io.BytesIO(each)).convert("RGB"), threshold=0.1) for each in pictures]

    assert all(answers)
    assert answers == nearly(expected)


def test_speech_is_heard_by_whisper_in_batches(tmp_path):
    """Sound within its window is padded to one length and shares a call; longer sound has its own."""
    tiny_models.whisper(tmp_path)
    bench = Bench(TaskPipeline, tmp_path, task="automatic-speech-recognition").load()
    noise = numpy.random.default_rng(0).integers(-9000, 9000, 20_000) / 32768
    sounds = [noise[:9000], noise[9000:14_000], noise]
    alone = pipeline("automatic-speech-recognition", tmp_path)
    files = [wav(each * 32768, rate=16_000) for each in sounds]
    calls, encoder = [], bench.handler._pipeline.model.model.encoder
    encoder.register_forward_hook(lambda *call: calls.append(len(call[2][0])))

    answers = bench.send(*files, files[0][:30])

    assert answers[:3] == [alone(each.astype("float32")) for each in sounds]
    assert len({answer["text"] for answer in answers[:3]}) == 3
    assert answers[3].startswith("the sound cannot be read")
    assert calls[0] == 2
    with pytest.raises(PredictionException, match="cannot return `char` timestamps") as caught:
        bench.send(
            {"inputs": base64.b64encode(files[0]).decode(), "parameters": {"return_timestamps": "char"}}
        )
    assert caught.value.error_code == 400


def test_unknown_task_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"task must be one of text-classification, .*, got juggling"):
        Bench(TaskPipeline, tmp_path, task="juggling").load()


@pytest.mark.parametrize(
    ("handler", "head"), [(TaskPipeline, "ForSequenceClassification"), (Embeddings, "Model")]
)
def test_missing_tokenizer_is_reported(handler, head, tmp_path):
    """As of a folder to which only the network was saved: each text would be one of unknown words."""
    tiny_models.bert(tmp_path, head)
    for path in tmp_path.glob("token*"):
        path.unlink()
    with pytest.raises(ModelLoadError, match=r"tokenizer has no words: its files.* are missing"):
        Bench(handler, tmp_path, task="text-classification").load()

from modelserver.ext.stores.extension import Stores


def test_options_of_a_hub_model_are_not_its_address():
    assert Stores().without_options("hf://org/name?task=rerank&engine=transformers") == "hf://org/name"

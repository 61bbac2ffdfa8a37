from tests.models.settings.conftest import refusal_of


def test_an_address_is_served_with_tls_or_without(tmp_path):
    text = "inference_address=https://127.0.0.1:8080\nmanagement_address=http://127.0.0.1:8080"
    message = refusal_of(tmp_path, text)
    assert message == (
        "Invalid configuration: management_address=http://127.0.0.1:8080: "
        "inference_address has the same host and port over https"
    )

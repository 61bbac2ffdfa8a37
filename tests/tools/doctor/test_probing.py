from modelserver.tools.doctor.probing import Called


def test_calls_are_whole_or_failed():
    assert [Called(2, 2).is_whole, Called(2, 1).is_whole, Called(0, -1).is_whole] == [True, False, False]
    assert (Called(1, 1, "E: no").is_whole, Called(1, -1, "E: no").failed) == (False, True)

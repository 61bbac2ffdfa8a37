from tests.tools.migrate.pairs import a_call, good

from modelserver.tools.migrate.changes import BETTER, OTHER, Rules


def test_a_rule_is_a_function_and_its_docstring():
    rules = Rules()

    @rules.taking_over("whole", BETTER)
    def _whole(_call, reference, _ours):
        """Ours is better, as it
        says more.
        """
        return reference.status == 500

    @rules.changing("phrase", OTHER)
    def _phrase(_call, reference, ours):
        """The phrase is ours."""
        return reference.but(reason=ours.reason)

    request, ours, failed = a_call("/ping"), good(1), good(0).but(status=500, reason="No")

    assert [(rule.name, rule.verdict, rule.why) for rule in rules] == [
        ("whole", BETTER, "Ours is better, as it says more."),
        ("phrase", OTHER, "The phrase is ours."),
    ]
    assert _whole.change(request, failed, ours) == ours
    assert _whole.change(request, good(0), ours) == good(0)
    assert _phrase.change(request, failed, ours) == failed.but(reason="OK")

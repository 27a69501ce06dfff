import msgspec
import pytest

from departing.service import messages as m
from departing.service.api.validation import explain
from departing.service.experiments import messages as em

FEEDBACK = m.Feedback | m.FeedbackBatch
FIELDS = "user, allowed, event, shown, propensity, explain"


@pytest.mark.parametrize(
    ("request_type", "body", "sentence"),
    [
        (m.RecommendRequest, b'{"user": 5}', "user is 5; expected a string of 1 to 200 characters"),
        (m.RecommendRequest, b'{"user": ""}', 'user is ""; expected a string of 1 to 200 characters'),
        (m.RecommendRequest, b"{}", "user is missing; expected a string of 1 to 200 characters"),
        (m.RecommendRequest, b'{"user": "a", "usr": 1}', f"usr is an unknown field; expected only {FIELDS}"),
        (m.RecommendRequest, b"[]", f"the body is []; expected an object with the fields {FIELDS}"),
        (m.RecommendRequest, b'{"user": "a", "allowed": ["x", 3]}', "allowed[1] is 3; expected a string of 1 to 200"),
        (
            m.RecommendRequest,
            b'{"user": "a", "allowed": []}',
            "allowed is []; expected a list of 1 to 1,000 items or",
        ),
        (m.RecommendRequest, b'{"user": "a", "propensity": 0}', "propensity is 0; expected a number > 0 and ≤ 1 or"),
        (
            m.RecommendRequest,
            b'{"user": "a", "segment": {"device": null, "country": 3}}',
            "segment.country is 3; expected a string of at most 200 characters or null",
        ),
        (FEEDBACK, b'[{"event": "a"}]', "[0].clicked is missing; expected true or false"),
        (FEEDBACK, b'[{"event": "a", "clicked": 1}]', "[0].clicked is 1; expected true or false"),
        (FEEDBACK, b'[{"event": "a", "clicked": true, "x": 1}]', "[0].x is an unknown field; expected only event, "),
        (
            em.ExperimentAction,
            b'{"action": "foo"}',
            'action is "foo"; expected one of "complete", "ramp", "rollback",',
        ),
        (em.ExperimentStart, b'{"treatment": "x"}', 'treatment is "x"; expected an integer ≥ 0 and ≤ 9,007,199,254'),
        (
            em.ExperimentStart,
            b'{"treatment": 0, "window": "1 day"}',
            'window is "1 day"; expected a number of seconds',
        ),
        (
            m.CategoryRequest,
            b'{"name": " "}',
            'name is " "; expected a string of 1 to 200 characters, not only white',
        ),
        (m.RecommendRequest, b'{"user": 1e999}', "Number out of range"),
        (dict[str, dict[str, int]], b'{"a": {"b": "c"}}', "Expected `int`, got `str` - at `$[...][...]`"),
    ],
)
def test_a_sentence_has_the_field_its_value_and_what_is_accepted(request_type, body, sentence):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=request_type)
    assert explain(caught.value, body, request_type).startswith(sentence)


def test_a_long_value_is_shortened():
    body = b'{"user": "' + b"x" * 10**6 + b'"}'
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=m.RecommendRequest)
    assert len(explain(caught.value, body, m.RecommendRequest)) < 150

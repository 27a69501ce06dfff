"""Invalid options of `departing serve`."""

from helpers.commands import call


def test_a_blank_category_is_rejected(tmp_path):
    done = call("serve", "--learn", "--categories", "a,b,", "--store", tmp_path / "s.sqlite")
    assert done.exit_code == 2
    assert done.stderr.strip() == "Error: --categories is ['a', 'b', '']; expected nonempty names."
    assert list(tmp_path.iterdir()) == []

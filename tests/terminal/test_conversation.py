"""What a conversation sends of its files."""

from core_commands.terminal.conversation import Conversation


def test_a_file_with_fences_is_held_by_a_longer_one() -> None:
    conversation = Conversation()
    conversation.files = [("a.txt", "plain"), ("b.md", "````\ncode\n````")]
    conversation.ask("Why?")
    assert conversation.messages[0].content == (
        "a.txt:\n```\nplain\n```\n\nb.md:\n`````\n````\ncode\n````\n`````\n\nWhy?"
    )

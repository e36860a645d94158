"""Prompts that differ in what they ask and of what.

Owns: both lists and how they are paired. Never does: ask anybody. Called by: `train_draft.py`.
"""

from __future__ import annotations

import random
from typing import Final

TASKS: Final = (
    "What is {topic}?",
    "Explain {topic} to a ten-year-old.",
    "Write a short story about {topic}.",
    "Write a poem of four lines about {topic}.",
    "List five facts about {topic}.",
    "Why does {topic} matter?",
    "Give me three tips for somebody who wants to learn about {topic}.",
    "Summarize the history of {topic} in a few sentences.",
    "What are the advantages and disadvantages of {topic}?",
    "Write an email to a friend about {topic}.",
    "How would you teach {topic} in school?",
    "What are common mistakes that people make with {topic}?",
    "Write a product description that has to do with {topic}.",
    "Compare {topic} today with a hundred years ago.",
    "Write a dialogue between two people who talk about {topic}.",
    "Write a Python function that has something to do with {topic}, and explain it.",
    "Make a plan for a day that is all about {topic}.",
    "What could the future of {topic} look like?",
    "Name ten words that have to do with {topic}, one on each line.",
    "Write the introduction of an essay about {topic}.",
    "Which questions should I ask an expert in {topic}?",
    "Describe {topic} in one paragraph.",
)
TOPICS: Final = (
    *(
        "the ocean",
        "volcanoes",
        "bread",
        "chess",
        "bicycles",
        "the moon",
        "honey bees",
        "libraries",
        "trains",
        "rivers",
    ),
    *(
        "photography",
        "gardening",
        "the human heart",
        "democracy",
        "electric cars",
        "glaciers",
        "dinosaurs",
        "music theory",
    ),
    *(
        "coffee",
        "mathematics",
        "football",
        "recycling",
        "the Roman Empire",
        "computers",
        "dreams",
        "wolves",
        "vaccines",
    ),
    *(
        "painting",
        "the stock market",
        "rain",
        "bridges",
        "languages",
        "sleep",
        "robots",
        "cheese",
        "mountains",
        "wind power",
    ),
    *(
        "friendship",
        "the Silk Road",
        "lighthouses",
        "time zones",
        "spiders",
        "the internet",
        "pottery",
        "gravity",
        "tea",
    ),
    *(
        "hospitals",
        "owls",
        "maps",
        "sailing",
        "the brain",
        "prime numbers",
        "forests",
        "theatre",
        "earthquakes",
        "cooking",
    ),
    *(
        "black holes",
        "dogs",
        "architecture",
        "money",
        "insects",
        "the printing press",
        "yoga",
        "deserts",
        "weather forecasts",
    ),
    *(
        "sorting algorithms",
        "elections",
        "salt",
        "violins",
        "whales",
        "aeroplanes",
        "museums",
        "soil",
        "courage",
        "the sun",
    ),
    *(
        "paper",
        "running",
        "antibiotics",
        "castles",
        "clocks",
        "batteries",
        "penguins",
        "comets",
        "public transport",
        "memory",
    ),
    *(
        "knitting",
        "rice",
        "lightning",
        "databases",
        "kindness",
        "steel",
        "birds",
        "the Olympic Games",
        "fire",
        "astronomy",
    ),
)
HELD_OUT_TOPICS: Final = (
    *(
        "tigers",
        "the piano",
        "snow",
        "steam engines",
        "the immune system",
        "chocolate",
        "satellites",
        "islands",
        "patience",
    ),
    *("binary search", "swimming", "the Middle Ages", "tomatoes", "solar power", "camping", "newspapers"),
)


def training_prompts(count: int, seed: int) -> list[str]:
    """`count` prompts, all different while there are enough pairs."""
    return _drawn(TOPICS, count, seed)


def held_out_prompts(count: int, seed: int) -> list[str]:
    """The same of topics that no training prompt speaks of."""
    return _drawn(HELD_OUT_TOPICS, count, seed)


def _drawn(topics: tuple[str, ...], count: int, seed: int) -> list[str]:
    pairs = [(task, topic) for task in TASKS for topic in topics]
    random.Random(seed).shuffle(pairs)
    chosen = [pairs[number % len(pairs)] for number in range(count)]
    return [task.format(topic=topic) for task, topic in chosen]

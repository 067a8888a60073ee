"""Records tests/golden/profile.json from torch.profiler: the actions of schedules, and averages and tables of made-up
events. Usage: record_profile_golden.py FILE [SEED]"""
import json
import random
import sys

import torch
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import schedule

NAMES = ["aten::mm", "aten::add_", "aten::empty", "ProfilerStep#3", "ProfilerStep#4", "forward",
         "autograd::engine::evaluate_function: AddmmBackward0, a name that is longer than its column"]


def schedules(random_numbers):
    cases = []
    for number in range(200):
        options = {"wait": random_numbers.randint(0, 4), "warmup": random_numbers.randint(0, 3),
                   "active": random_numbers.randint(1, 5), "repeat": random_numbers.randint(0, 3),
                   "skip_first": random_numbers.randint(0, 6), "skip_first_wait": random_numbers.randint(0, 1)}
        action = schedule(**options)
        cases.append({"case": f"schedule/{number}", "input": options,
                      "expected": {"actions": [action(step).value for step in range(100)]}})
    return cases


def made_events(random_numbers, with_shapes, with_memory, with_flops):
    """Intervals inside of intervals, on two threads."""
    events = []

    def add(thread, start, end, depth):
        shapes = [[random_numbers.randint(1, 3), 4]] * random_numbers.randint(0, 2) if with_shapes else []
        events.append({"name": random_numbers.choice(NAMES), "thread": thread, "start_ns": start, "end_ns": end,
                       "input_shapes": shapes, "flops": random_numbers.choice([0, 0, 24000, 5000000]) if with_flops else 0,
                       "cpu_bytes": random_numbers.choice([0, 100, -2048, 3 << 20]) if with_memory else 0,
                       "is_async": depth == 0 and random_numbers.random() < 0.1})
        if events[-1]["is_async"]:
            return
        at = start
        while depth < 3 and at < end - 20:
            begin = at + random_numbers.randint(1, 40)
            stop = begin + random_numbers.randint(1, max(2, (end - start) // 2))
            if stop >= end:
                break
            if random_numbers.random() < 0.6:
                add(thread, begin, stop, depth + 1)
            at = stop

    for thread in (7, 9):
        at = 1000
        for _ in range(random_numbers.randint(1, 6)):
            length = random_numbers.choice([30, 5000, 4000000, 2100000000])
            add(thread, at, at + length, 0)
            at += length + random_numbers.randint(0, 50)
    return sorted(events, key=lambda event: (event["start_ns"], -event["end_ns"]))


def event_list(events, options):
    functions = [FunctionEvent(id=number, name=torch.autograd.profiler_util._rewrite_name(event["name"], True),
                               thread=event["thread"], start_us=event["start_ns"] / 1000, end_us=event["end_ns"] / 1000,
                               input_shapes=event["input_shapes"], stack=[], scope=0, use_device=None,
                               cpu_memory_usage=event["cpu_bytes"], is_async=event["is_async"], flops=event["flops"])
                 for number, event in enumerate(events)]
    made = EventList(functions, use_device=None, profile_memory=options["with_memory"],
                     with_flops=options["with_flops"])
    made._build_tree()
    return made


def tables(random_numbers):
    cases = []
    for number in range(40):
        options = {"with_shapes": random_numbers.random() < 0.5, "with_memory": random_numbers.random() < 0.5,
                   "with_flops": random_numbers.random() < 0.5, "group_by_input_shapes": random_numbers.random() < 0.5,
                   "sort_by": random_numbers.choice(["", "cpu_time_total", "self_cpu_time_total", "cpu_time", "count"]),
                   "row_limit": random_numbers.choice([3, 100]), "time_unit": random_numbers.choice(["", "us", "ms", "s"]),
                   "header": random_numbers.choice(["", "of a step"])}
        events = made_events(random_numbers, options["with_shapes"], options["with_memory"], options["with_flops"])
        averages = event_list(events, options).key_averages(group_by_input_shapes=options["group_by_input_shapes"])
        table = averages.table(sort_by=options["sort_by"] or None, row_limit=options["row_limit"],
                               time_unit=options["time_unit"] or None, header=options["header"] or None)
        cases.append({"case": f"table/{number}", "input": {"options": options, "events": events},
                      "expected": {"keys": [average.key for average in averages],
                                   "counts": [average.count for average in averages], "table": table}})
    return cases


def main():
    random_numbers = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    cases = schedules(random_numbers) + tables(random_numbers)
    with open(sys.argv[1], "w") as file:
        file.write(json.dumps({"topic": "profile", "versions": {"torch": torch.__version__}})[:-1] + ', "cases": [\n')
        file.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]}\n")


main()

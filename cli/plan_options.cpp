// The options of `hasten plan`; see options.h.
#include "options.h"

namespace hasten::cli {
namespace {

using launcher::kHasten;
using launcher::Option;
using launcher::OptionGroup;
using enum launcher::OptionKind;

Option size(std::string_view name, std::string_view help) {
  return {.name = name, .kind = kReal, .peers = kHasten, .least = 0, .most = 1e9, .value = "N", .help = help};
}

OptionGroup layouts() {
  return {
      "Layouts",
      "Without --memory.",
      {{.name = "devices",
        .kind = kInteger,
        .peers = kHasten,
        .least = 1,
        .most = 1 << 24,
        .help = "Devices in all; default: one host's"},
       {.name = "device",
        .peers = kHasten,
        .fallback = "h100_80gb",
        .value = "NAME",
        .help = "a100_40gb, a100_80gb, h100_80gb, h100_500w, cpu; with --cluster, a machine of the file"},
       {.name = "cluster",
        .peers = kHasten,
        .value = "FILE",
        .help = "Machines and constants, in the form of docs/plan.md"},
       size("batch", "Sequences of a step, of all devices; default: one a device"),
       {.name = "micro_batch",
        .kind = kInteger,
        .peers = kHasten,
        .least = 1,
        .most = 1 << 20,
        .help = "Sequences of a forward on one device; default: searched"},
       {.name = "precision",
        .kind = kChoice,
        .peers = kHasten,
        .choices = "no fp16 bf16 fp8",
        .help = "Default: bf16, on a CPU no"},
       {.name = "strategies",
        .peers = kHasten,
        .value = "NAMES",
        .help = "Of ddp, zero1, zero2, zero3, with commas; default: all"},
       {.name = "layout",
        .peers = kHasten,
        .value = "PARTS",
        .help = "Parts to fix: tp, pp, chunks, cp, shard, zero, recompute, sp, order, overlap, as tp=8,pp=4"},
       {.name = "top",
        .kind = kInteger,
        .peers = kHasten,
        .fallback = "10",
        .least = 1,
        .most = 1 << 20,
        .help = "Rows"},
       {.name = "json", .kind = kSwitch, .peers = kHasten, .help = "As JSON"},
       {.name = "explain", .kind = kSwitch, .peers = kHasten, .help = "Derive each number of the layout to take"},
       {.name = "draw", .kind = kSwitch, .peers = kHasten, .help = "Draw its pipeline's order"},
       {.name = "no_flash", .kind = kSwitch, .peers = kHasten, .help = "Attention is not fused: it keeps its scores"},
       {.name = "overlap",
        .kind = kReal,
        .peers = kHasten,
        .fallback = "0.9",
        .least = 0,
        .most = 1,
        .help = "Share of computing behind which the data exchange hides"}}};
}

OptionGroup model_fields() {
  return {"Model",
          "Instead of those of MODEL, or without one.",
          {size("layers", "Layers"),
           size("hidden", "Width between layers"),
           size("heads", "Heads of queries"),
           size("kv_heads", "Heads of keys and values; default: heads"),
           size("head_dim", "Width of a head; default: hidden / heads"),
           size("ffn", "Width inside the feed-forward part; default: 4 hidden"),
           size("vocabulary", "Rows of the table of words"),
           size("sequence", "Tokens of a sequence"),
           {.name = "gated", .kind = kFlag, .peers = kHasten, .help = "Two matrices lead into the feed-forward part"},
           {.name = "tied", .kind = kFlag, .peers = kHasten, .help = "The head is the table of words"}}};
}

OptionGroup measure() {
  return {"Measuring",
          "Without MODEL.",
          {{.name = "measure",
            .kind = kSwitch,
            .peers = kHasten,
            .help = "Measure products, attention, memory and all-reduces here, and write a file for --cluster"},
           {.name = "num_processes",
            .letter = 'n',
            .kind = kInteger,
            .least = 1,
            .most = 1 << 20,
            .help = "Processes that measure together; default: as hasten launch"},
           {.name = "output",
            .letter = 'o',
            .peers = kHasten,
            .fallback = "measured.json",
            .value = "FILE",
            .help = "The file"}}};
}

OptionGroup memory() {
  return {"Memory",
          "With --memory.",
          {{.name = "memory", .kind = kSwitch, .peers = kHasten, .help = "Print the table of memory"},
           {.name = "config",
            .peers = kHasten,
            .value = "FILE",
            .help = "A DeepSpeed configuration, whose dtype and optimizer count"},
           {.name = "ranks_per_host",
            .kind = kInteger,
            .peers = kHasten,
            .fallback = "1",
            .least = 1,
            .most = 1 << 20,
            .help = "Processes on each host"},
           {.name = "num_machines", .kind = kInteger, .fallback = "1", .least = 1, .most = 1 << 20, .help = "Hosts"},
           {.name = "mixed_precision", .kind = kChoice, .choices = "no fp16 bf16 fp8", .help = "What to compute in"},
           {.name = "optimizer_bytes",
            .kind = kInteger,
            .peers = kHasten,
            .fallback = "8",
            .least = 0,
            .most = 64,
            .help = "State a parameter: Adam 8, momentum 4. For layouts, too"},
           {.name = "limit_gib",
            .kind = kReal,
            .peers = kHasten,
            .least = 0,
            .most = 1e9,
            .help = "Memory of a host; the first strategy that fits is named"}}};
}

}  // namespace

const std::vector<OptionGroup>& plan_options() {
  static const std::vector<OptionGroup> groups = {layouts(), model_fields(), measure(), memory()};
  return groups;
}

}  // namespace hasten::cli

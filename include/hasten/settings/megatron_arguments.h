// MegatronArguments: Megatron-LM's own arguments, as other_megatron_args of Accelerate's plugin takes them.
//
// Pure. An argument sets a field of the plugin (megatron_plugin.h) or an option of the run, or it has no effect here.
// One that belongs to something that the program makes is refused with that place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::plan {

enum class MegatronEffect {
  /// A field of the plugin; `words` is its name.
  kField,
  /// An option of the Accelerator.
  kOption,
  /// Nothing changes; `words` is the reason.
  kNone,
  /// The program makes it; `words` is the place.
  kElsewhere,
};

struct MegatronArgument {
  std::string_view name;
  MegatronEffect effect = MegatronEffect::kNone;
  std::string_view words = {};
};

/// All arguments that are known, those of fields first.
const std::vector<MegatronArgument>& megatron_argument_table();

/// A map of arguments, divided by what they do.
struct MegatronOthers {
  /// By the fields' names; by Megatron's.
  core::Value fields = core::Value::map(), options = core::Value::map();
  /// Lines on arguments without effect.
  std::vector<std::string> notes = {};
};

/// Throws: UsageError for a name that is not in the table, with the nearest; for those that belong elsewhere, all of
/// them in one message; for an option of another kind than a number (seed, distributed_timeout_minutes) or true and
/// false (bf16, fp16).
MegatronOthers read_megatron_arguments(const core::Value& arguments);

}  // namespace hasten::plan

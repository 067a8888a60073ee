// Settings of Accelerate's FSDP and DeepSpeed plugins as options of distribute. python/hasten/plugins.py writes the
// texts.
#include <string>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/json.h"
#include "hasten/plugins/shard_options.h"
#include "hasten/settings/deepspeed_config.h"
#include "hasten/settings/fsdp_plugin.h"
#include "python/trainer.h"

namespace hasten::python {
namespace {

using core::Value;

std::optional<std::string> text_at(const Value& settings, const std::string& key) {
  return settings.contains(key) ? std::optional(settings.at(key).as_string()) : std::nullopt;
}

std::optional<bool> flag_at(const Value& settings, const std::string& key) {
  return settings.contains(key) ? std::optional(settings.at(key).as_bool()) : std::nullopt;
}

std::optional<int64_t> count_at(const Value& settings, const std::string& key) {
  return settings.contains(key) ? std::optional(settings.at(key).as_int()) : std::nullopt;
}

std::vector<std::string> texts_at(const Value& settings, const std::string& key) {
  std::vector<std::string> all;
  if (!settings.contains(key)) return all;
  for (const Value& item : settings.at(key).as_list()) all.push_back(item.as_string());
  return all;
}

}  // namespace

parallel::ShardOptions fsdp_options(const std::string& text, parallel::ShardOptions base) {
  const auto read = core::read_json(text, {});
  if (!read) throw UsageError(Origin{"python"}, "settings of FSDP are no JSON.");
  const Value& settings = *read;
  plan::FsdpPlugin plugin{
      .fsdp_version = static_cast<int>(count_at(settings, "fsdp_version").value_or(1)),
      .sharding_strategy = text_at(settings, "sharding_strategy"),
      .auto_wrap_policy = text_at(settings, "auto_wrap_policy"),
      .min_num_params = count_at(settings, "min_num_params"),
      .backward_prefetch = text_at(settings, "backward_prefetch"),
      .forward_prefetch = flag_at(settings, "forward_prefetch"),
      .limit_all_gathers = flag_at(settings, "limit_all_gathers").value_or(true),
      .ignored_modules = texts_at(settings, "ignored_modules"),
  };
  if (const auto reshard = flag_at(settings, "reshard_after_forward")) plugin.reshard_after_forward = *reshard;
  if (settings.contains("transformer_cls_names_to_wrap"))
    plugin.transformer_cls_names_to_wrap = texts_at(settings, "transformer_cls_names_to_wrap");
  base = parallel::shard_options(plan::resolve_fsdp(plugin, Environment::of({})), std::move(base));
  base.param_dtype = text_at(settings, "param_dtype").value_or("");
  return base;
}

parallel::ShardOptions deepspeed_options(const std::string& text, parallel::ShardOptions base) {
  const auto config = plan::DeepSpeedConfig::read(Value(text));
  return parallel::shard_options(plan::resolve_deepspeed(config, 1, /*needs_batch=*/false), config, std::move(base));
}

}  // namespace hasten::python

// Hooks of TorchScript modules.
//
// A script's class has its forward replaced by one that calls the original with hooks around it, for the objects that
// have hooks. Calls are compiled into their callers, so the compiled plans of the whole script are forgotten then.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "hasten/offload/hooks/model_hook.h"
#include "hasten/offload/hooks/script_site.h"

namespace hasten::offload::detail {

/// Adds a hook to the script's module of that dotted name; `module` is what hooks are given for it.
/// Throws: UsageError if it has no forward.
void add_script_hook(ScriptSite& site, const std::string& name, const std::shared_ptr<torch::nn::Module>& module,
                     ModelHookPtr hook, bool append);
/// Detaches its hooks; its class is as before when none of its objects has any. Without effect if it has none.
void remove_script_hooks(ScriptSite& site, const std::string& name);

}  // namespace hasten::offload::detail

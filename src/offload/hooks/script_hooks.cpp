// See script_hooks.h.
#include "offload/hooks/script_hooks.h"

#include <ATen/core/builtin_function.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "offload/hooks/member_access.h"

namespace hasten::offload::detail {

struct FunctionExecutors {
  friend auto member_of(FunctionExecutors);
};
template struct MemberAccess<FunctionExecutors, &torch::jit::GraphFunction::executors_>;

namespace {

using torch::jit::Function;
using torch::jit::GraphFunction;
using Object = c10::ivalue::Object;

constexpr const char* kForward = "forward";

void forget_plans(Function& function) {
  GraphFunction* const graph = torch::jit::tryToGraphFunction(function);
  if (graph == nullptr) return;
  graph->clear_optimized_graphs();
  (graph->*member_of(FunctionExecutors{})) = {};
}

struct HookedObject {
  c10::weak_intrusive_ptr<Object> object;
  std::weak_ptr<torch::nn::Module> module;
  HookList hooks;
};

struct HookedClass {
  c10::ClassTypePtr type;
  Function* original = nullptr;
  std::unique_ptr<torch::jit::BuiltinOpFunction> hooked;  // plans elsewhere may have compiled it in, so it stays

  void install() {
    if (type->findMethod(kForward) == hooked.get()) return;
    type->unsafeRemoveMethod(kForward);
    type->addMethod(hooked.get());
  }
  void restore() {
    if (type->findMethod(kForward) != hooked.get()) return;
    type->unsafeRemoveMethod(kForward);
    type->addMethod(original);
  }
};

c10::IValue call_with(HookedObject& hooked, torch::nn::Module& module, Function& original,
                      std::vector<c10::IValue> values) {
  std::vector<HookValue> seen;
  for (auto value = values.begin() + 1; value != values.end(); ++value) seen.push_back(HookValue::of(*value));
  Arguments arguments(std::move(seen));
  hooked.hooks.before(module, arguments);
  const auto call = [&] {
    if (!hooked.hooks.no_grad()) return original(std::move(values));
    const at::NoGradGuard guard;
    return original(std::move(values));
  };
  c10::IValue result = call();
  Output output(HookValue::of(result));
  hooked.hooks.after(module, output);
  const auto& type = *original.getSchema().returns().front().type();
  if (!result.type()->isSubtypeOf(type)) {
    throw UsageError(Origin{"offload"}, "a hook gave ", result.type()->str(), " as the output of '",
                     original.qualname().qualifiedName(), "', whose script gives ", type.str(),
                     ". Change the output within its type.");
  }
  return result;
}

// The classes and objects of this process that have hooks.
class ScriptHooks {
 public:
  static ScriptHooks& instance() {
    static auto* const hooks = new ScriptHooks;  // plans may outlive static objects
    return *hooks;
  }

  std::shared_ptr<HookedObject> find(const Object* object) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(object);
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<HookedObject> find_or_make(torch::jit::Module& script, torch::jit::Module& part,
                                             const std::shared_ptr<torch::nn::Module>& module) {
    const std::lock_guard lock(mutex_);
    std::erase_if(objects_, [](const auto& entry) { return entry.second->object.expired(); });
    auto& entry = objects_[part._ivalue().get()];
    if (!entry) {
      entry = std::make_shared<HookedObject>(HookedObject{c10::weak_intrusive_ptr<Object>(part._ivalue()), module, {}});
      class_of(part.type()).install();
      forget_plans_of(script);
    }
    entry->module = module;
    return entry;
  }

  std::shared_ptr<HookedObject> take(torch::jit::Module& script, torch::jit::Module& part) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(part._ivalue().get());
    if (found == objects_.end()) return nullptr;
    auto entry = found->second;
    objects_.erase(found);
    const auto type = part.type();
    const auto is_of_class = [&](const auto& other) {
      const auto object = other.second->object.lock();
      return object && object->type() == type;
    };
    if (std::none_of(objects_.begin(), objects_.end(), is_of_class)) {
      class_of(type).restore();
      forget_plans_of(script);
    }
    return entry;
  }

 private:
  HookedClass& class_of(const c10::ClassTypePtr& type) {
    auto& entry = classes_[type.get()];
    if (!entry.type) {
      entry.type = type;
      entry.original = &type->getMethod(kForward);
      const auto run = [this, original = entry.original](torch::jit::Stack& stack) { run_hooked(*original, stack); };
      entry.hooked =
          std::make_unique<torch::jit::BuiltinOpFunction>(entry.original->qualname(), entry.original->getSchema(), run);
    }
    return entry;
  }

  void run_hooked(Function& original, torch::jit::Stack& stack) {
    const auto begin = stack.end() - static_cast<std::ptrdiff_t>(original.num_inputs());
    std::vector<c10::IValue> values(std::make_move_iterator(begin), std::make_move_iterator(stack.end()));
    stack.erase(begin, stack.end());
    const auto hooked = find(&values.front().toObjectRef());
    const auto module = hooked ? hooked->module.lock() : nullptr;
    stack.push_back(module ? call_with(*hooked, *module, original, std::move(values)) : original(std::move(values)));
  }

  void forget_plans_of(torch::jit::Module& script) {
    for (const torch::jit::Module& part : script.modules()) {
      for (Function* method : part.type()->methods()) forget_plans(*method);
      const auto hooked = classes_.find(part.type().get());
      if (hooked != classes_.end()) forget_plans(*hooked->second.original);
    }
  }

  std::mutex mutex_;
  std::map<const Object*, std::shared_ptr<HookedObject>> objects_;
  std::map<const c10::ClassType*, HookedClass> classes_;
};

torch::jit::Module part_of(ScriptSite& site, const std::string& name) {
  torch::jit::Module part = site.jit();
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    part = part.attr(name.substr(begin, end - begin)).toModule();
    begin = end + 1;
  }
  return part;
}

}  // namespace

void add_script_hook(ScriptSite& site, const std::string& name, const std::shared_ptr<torch::nn::Module>& module,
                     ModelHookPtr hook, bool append) {
  torch::jit::Module part = part_of(site, name);
  if (part.find_method(kForward) == std::nullopt) {
    throw UsageError(Origin{"offload"}, "nothing would call a hook of '", name,
                     "': its script has no forward. Add the hook to the modules below it.");
  }
  ScriptHooks::instance().find_or_make(site.jit(), part, module)->hooks.add(*module, std::move(hook), append);
}

void remove_script_hooks(ScriptSite& site, const std::string& name) {
  torch::jit::Module part = part_of(site, name);
  const auto entry = ScriptHooks::instance().take(site.jit(), part);
  if (!entry) return;
  if (const auto module = entry->module.lock()) entry->hooks.clear(*module);
}

}  // namespace hasten::offload::detail

// See hook_site.h.
#include "hasten/offload/hooks/hook_site.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/listing.h"
#include "hasten/core/sentence.h"
#include "hasten/interception/interceptor.h"
#include "hasten/offload/hooks/script_site.h"
#include "offload/hooks/member_access.h"
#include "offload/hooks/script_hooks.h"

namespace hasten::offload {

// AnyModule has no way to exchange its holder.
namespace detail {
struct AnyModuleContent {
  friend auto member_of(AnyModuleContent);
};
template struct MemberAccess<AnyModuleContent, &torch::nn::AnyModule::content_>;
}  // namespace detail

namespace {

using torch::nn::AnyModule;
using torch::nn::AnyModulePlaceholder;
using torch::nn::AnyValue;

// The holder of a slot's module, with hooks around its forward. It has a type of its own: at<T>(i) casts the holder by
// its type argument, so it has to throw while there are hooks.
class HookedSlot : public AnyModulePlaceholder {
 public:
  HookedSlot(std::unique_ptr<AnyModulePlaceholder> content, std::shared_ptr<HookList> hooks)
      : AnyModulePlaceholder(typeid(HookedSlot)), content_(std::move(content)), hooks_(std::move(hooks)) {}

  AnyValue forward(std::vector<AnyValue>&& values) override {
    std::vector<detail::HookValue> seen;
    for (AnyValue& value : values) seen.push_back(detail::HookValue::of(value));
    Arguments arguments(std::move(seen));
    torch::nn::Module& module = *content_->ptr();
    hooks_->before(module, arguments);
    AnyValue result = call(std::move(values));
    Output output(detail::HookValue::of(result));
    hooks_->after(module, output);
    return result;
  }
  std::shared_ptr<torch::nn::Module> ptr() override { return content_->ptr(); }
  std::unique_ptr<AnyModulePlaceholder> copy() const override {
    return std::make_unique<HookedSlot>(content_->copy(), hooks_);
  }
  /// A clone is another module: it has no hooks.
  std::unique_ptr<AnyModulePlaceholder> clone_module(std::optional<torch::Device> device) const override {
    return content_->clone_module(device);
  }

  HookList& hooks() { return *hooks_; }
  std::unique_ptr<AnyModulePlaceholder> take() { return std::move(content_); }

 private:
  AnyValue call(std::vector<AnyValue>&& values) {
    if (!hooks_->no_grad()) return content_->forward(std::move(values));
    const at::NoGradGuard guard;
    return content_->forward(std::move(values));
  }

  std::unique_ptr<AnyModulePlaceholder> content_;
  std::shared_ptr<HookList> hooks_;
};

std::unique_ptr<AnyModulePlaceholder>& content_of(AnyModule& slot) {
  return slot.*member_of(detail::AnyModuleContent{});
}

std::shared_ptr<torch::nn::Module> child_at(torch::nn::Module& root, const std::string& name) {
  if (name.empty()) return root.shared_from_this();
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    if (item.key() == name) return item.value();
  }
  std::vector<std::string> names;
  for (const auto& item : root.named_modules("", false)) names.push_back(item.key());
  throw UsageError(Origin{"offload"}, "there is no module '", name, "'", guess_end(name, names), " Its modules are ",
                   core::listing(names), ".");
}

std::string parent_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// The slot that holds the module, if its parent is a Sequential.
AnyModule* slot_of(torch::nn::Module& root, const std::string& name) {
  const auto module = child_at(root, name);
  const std::string parent_name = parent_of(name);
  auto* parent = parent_name.empty() ? &root : child_at(root, parent_name).get();
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(parent);
  if (sequential == nullptr) return nullptr;
  for (AnyModule& slot : *sequential) {
    if (slot.ptr() == module) return &slot;
  }
  return nullptr;
}

HookedSlot* hooked_slot(AnyModule* slot) {
  return slot == nullptr ? nullptr : dynamic_cast<HookedSlot*>(content_of(*slot).get());
}

// The script that a module belongs to, and the module's name there.
struct ScriptPlace {
  ScriptSite* site = nullptr;
  std::string name;
};

ScriptPlace script_place(torch::nn::Module& root, const std::string& name) {
  if (auto* site = dynamic_cast<ScriptSite*>(&root)) return {site, name};
  for (size_t end = 0; end < name.size();) {
    end = std::min(name.find('.', end + 1), name.size());
    if (auto* site = dynamic_cast<ScriptSite*>(child_at(root, name.substr(0, end)).get())) {
      return {site, end == name.size() ? "" : name.substr(end + 1)};
    }
  }
  return {};
}

void detach(torch::nn::Module& root, const std::string& name) {
  torch::nn::Module& module = name.empty() ? root : *child_at(root, name);
  if (auto* site = dynamic_cast<HookSite*>(&module)) site->hooks().clear(module);
  if (const auto script = script_place(root, name); script.site != nullptr)
    return detail::remove_script_hooks(*script.site, script.name);
  if (name.empty()) return;
  AnyModule* slot = slot_of(root, name);
  if (HookedSlot* hooked = hooked_slot(slot)) {
    hooked->hooks().clear(module);
    content_of(*slot) = hooked->take();
  }
}

}  // namespace

void add_hook(torch::nn::Module& root, const std::string& name, ModelHookPtr hook, const AddHookOptions& options) {
  torch::nn::Module& module = name.empty() ? root : *child_at(root, name);
  if (auto* site = dynamic_cast<HookSite*>(&module)) return site->hooks().add(module, std::move(hook), options.append);
  if (const auto script = script_place(root, name); script.site != nullptr) {
    return detail::add_script_hook(*script.site, script.name, child_at(root, name), std::move(hook), options.append);
  }
  AnyModule* slot = name.empty() ? nullptr : slot_of(root, name);
  if (slot == nullptr) {
    throw UsageError(Origin{"offload"}, "nothing would call a hook of '", name, "' (", module.name(),
                     "): libtorch calls its forward directly. ",
                     name.empty() ? "Dispatch the model and add the hook to its handle"
                                  : "Declare the member as offload::Hooked<…>, or put the module into a Sequential",
                     "; offload::on_use works without either.");
  }
  if (hooked_slot(slot) == nullptr) {
    auto& content = content_of(*slot);
    content = std::make_unique<HookedSlot>(std::move(content), std::make_shared<HookList>());
  }
  hooked_slot(slot)->hooks().add(module, std::move(hook), options.append);
}

void remove_hook(torch::nn::Module& root, const std::string& name, const RemoveHookOptions& options) {
  detach(root, name);
  if (!options.recurse) return;
  torch::nn::Module& module = name.empty() ? root : *child_at(root, name);
  for (const auto& item : module.named_modules("", false)) {
    if (!item.key().empty()) detach(module, item.key());
  }
}

void remove_hooks(torch::nn::Module& root) {
  remove_hook(root, "", {.recurse = true});
}

class OnUse::Watcher : public interception::Interceptor {
 public:
  Watcher(std::function<void()> enter, std::function<void()> leave)
      : enter_(std::move(enter)), leave_(std::move(leave)) {}
  interception::Level level() const override { return interception::Level::kEveryOperator; }
  bool intercept(const c10::OperatorHandle&, interception::Stack&) override {
    if (current() == this) return false;
    finish_current();
    current() = this;
    if (enter_) enter_();
    return false;
  }
  static void finish_current() {
    Watcher* const last = std::exchange(current(), nullptr);
    if (last != nullptr && last->leave_) last->leave_();
  }
  static Watcher*& current() {
    thread_local Watcher* watcher = nullptr;
    return watcher;
  }
  std::vector<at::Tensor> tensors;

 private:
  std::function<void()> enter_, leave_;
};

OnUse::OnUse(torch::nn::Module& module, std::function<void()> enter, std::function<void()> leave)
    : watcher_(std::make_shared<Watcher>(std::move(enter), std::move(leave))) {
  for (const auto& tensor : module.parameters(/*recurse=*/false)) watcher_->tensors.push_back(tensor);
  for (const auto& tensor : module.buffers(/*recurse=*/false)) watcher_->tensors.push_back(tensor);
  if (watcher_->tensors.empty()) {
    throw UsageError(Origin{"offload"}, "on_use: ", module.name(),
                     " has no tensors of its own, so no operator shows its use.");
  }
  for (const auto& tensor : watcher_->tensors) interception::add_interceptor(tensor, watcher_);
}

void OnUse::stop() {
  if (!watcher_) return;
  for (const auto& tensor : watcher_->tensors) interception::remove_interceptor(tensor, watcher_.get());
  if (Watcher::current() == watcher_.get()) Watcher::current() = nullptr;
}

OnUse::~OnUse() {
  stop();
}

OnUse::OnUse(OnUse&&) noexcept = default;

OnUse& OnUse::operator=(OnUse&& other) noexcept {
  if (this != &other) {
    stop();
    watcher_ = std::move(other.watcher_);
  }
  return *this;
}

void OnUse::finish() {
  Watcher::finish_current();
}

}  // namespace hasten::offload

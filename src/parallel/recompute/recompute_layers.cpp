// See recompute_layers.h.
#include "hasten/parallel/recompute/recompute_layers.h"

#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hasten/parallel/recompute/recompute.h"

namespace hasten::parallel {
namespace detail {

// AnyModule has no way to exchange its holder. An explicit instantiation may name a private member.
struct SlotContent {
  friend auto slot_content(SlotContent);
};
template <class Tag, auto kMember>
struct SlotAccess {
  friend auto slot_content(Tag) { return kMember; }
};
template struct SlotAccess<SlotContent, &torch::nn::AnyModule::content_>;

}  // namespace detail

namespace {

using torch::nn::AnyModulePlaceholder;
using torch::nn::AnyValue;

// The holder of a member, which is run by recompute().
class RecomputedSlot : public AnyModulePlaceholder {
 public:
  explicit RecomputedSlot(std::shared_ptr<AnyModulePlaceholder> content)
      : AnyModulePlaceholder(typeid(RecomputedSlot)), content_(std::move(content)) {}

  AnyValue forward(std::vector<AnyValue>&& values) override {
    return recompute([content = content_, values = std::move(values)] {
      auto inputs = values;
      return content->forward(std::move(inputs));
    });
  }
  std::shared_ptr<torch::nn::Module> ptr() override { return content_->ptr(); }
  std::unique_ptr<AnyModulePlaceholder> copy() const override { return std::make_unique<RecomputedSlot>(content_); }
  std::unique_ptr<AnyModulePlaceholder> clone_module(std::optional<torch::Device> device) const override {
    return std::make_unique<RecomputedSlot>(content_->clone_module(device));
  }

 private:
  std::shared_ptr<AnyModulePlaceholder> content_;
};

int64_t wrap_members(torch::nn::SequentialImpl& layers, const std::function<bool(const torch::nn::Module&)>& chosen) {
  int64_t count = 0;
  for (auto& member : layers) {
    auto& content = member.*slot_content(detail::SlotContent{});
    const auto module = content->ptr();
    if (module->parameters().empty() || (chosen && !chosen(*module))) continue;
    ++count;
    if (dynamic_cast<RecomputedSlot*>(content.get()) == nullptr) {
      content = std::make_unique<RecomputedSlot>(std::move(content));
    }
  }
  return count;
}

}  // namespace

int64_t recompute_layers(torch::nn::Module& module, const std::function<bool(const torch::nn::Module&)>& chosen) {
  if (auto* layers = module.as<torch::nn::SequentialImpl>()) {
    if (const int64_t count = wrap_members(*layers, chosen); count > 0) return count;
  }
  int64_t count = 0;
  for (const auto& child : module.children()) count += recompute_layers(*child, chosen);
  return count;
}

}  // namespace hasten::parallel

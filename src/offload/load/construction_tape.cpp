// See construction_tape.h.
#include "offload/load/construction_tape.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace hasten::offload::detail {
namespace {

template <class Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) visit_tensors(item, visit);
  }
}

// The same value with tensors exchanged.
template <class Exchange>
c10::IValue with_exchanged(const c10::IValue& value, const Exchange& exchange) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(exchange(value.toTensor())) : value;
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) {
      if (tensor.defined()) tensor = exchange(tensor);
    }
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    auto list = value.toOptionalTensorList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      const std::optional<at::Tensor> tensor = list.get(i);
      if (tensor && tensor->defined()) list.set(i, exchange(*tensor));
    }
    return list;
  }
  return value;
}

bool gives_tensors(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& value) {
    return value.type()->isSubtypeOf(*c10::TensorType::get()) || value.type()->kind() == c10::TypeKind::ListType;
  });
}

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? static_cast<const void*>(tensor.storage().unsafeGetStorageImpl()) : nullptr;
}

void set_device(const c10::FunctionSchema& schema, interception::Stack& stack, size_t base) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == "device") stack[base + i] = c10::Device(c10::kMeta);
  }
}

}  // namespace

struct ConstructionTape::Needed {
  std::unordered_set<const c10::TensorImpl*> tensors;
  std::unordered_set<const void*> storages;

  void add(const at::Tensor& tensor, const c10::TensorImpl* identity) {
    tensors.insert(identity);
    if (const void* storage = storage_of(tensor); storage != nullptr && tensor.is_meta()) storages.insert(storage);
  }
};

const c10::TensorImpl* ConstructionTape::identity_of(const at::Tensor& tensor) const {
  const auto found = originals_.find(tensor.unsafeGetTensorImpl());
  return found == originals_.end() ? tensor.unsafeGetTensorImpl() : found->second;
}

// A token shares the storage, by which writes through views are found.
at::Tensor ConstructionTape::token_for(const at::Tensor& tensor) {
  if (!has(tensor)) return tensor;
  at::Tensor& token = tokens_[tensor.unsafeGetTensorImpl()];
  if (!token.defined()) {
    token = at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
    originals_[token.unsafeGetTensorImpl()] = tensor.unsafeGetTensorImpl();
  }
  return token;
}

bool ConstructionTape::touches(const c10::IValue& value) const {
  bool found = false;
  visit_tensors(value, [&](const at::Tensor& tensor) { found = found || has(tensor); });
  return found;
}

void ConstructionTape::make_real(interception::Stack& stack, size_t base) const {
  std::vector<at::Tensor> requested;
  for (size_t i = base; i < stack.size(); ++i) {
    visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (has(tensor) && tensor.is_meta()) requested.push_back(tensor);
    });
  }
  const Values values = replay(requested);
  for (size_t i = base; i < stack.size(); ++i) {
    stack[i] = with_exchanged(stack[i], [&](const at::Tensor& tensor) {
      const auto found = values.find(tensor.unsafeGetTensorImpl());
      return found == values.end() ? tensor : found->second;
    });
  }
}

bool ConstructionTape::intercept(const c10::OperatorHandle& op, interception::Stack& stack) {
  const auto& schema = op.schema();
  const size_t base = stack.size() - schema.arguments().size();
  std::vector<c10::IValue> inputs(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  const bool is_taped =
      std::any_of(inputs.begin(), inputs.end(), [&](const c10::IValue& value) { return touches(value); });
  // Values that the constructor reads (item, equal) are computed.
  if (is_taped && !gives_tensors(schema)) {
    make_real(stack, base);
    op.callBoxed(stack);
    return true;
  }
  set_device(schema, stack, base);
  try {
    op.callBoxed(stack);
  } catch (const c10::Error&) {
    // No kernel for meta, a shape that depends on values, or a mixture with real tensors.
    if (!is_taped) throw;
    stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
    stack.insert(stack.end(), inputs.begin(), inputs.end());
    make_real(stack, base);
    op.callBoxed(stack);
  }
  record(op, std::move(inputs), stack);
  return true;
}

void ConstructionTape::record(const c10::OperatorHandle& op, std::vector<c10::IValue> inputs,
                              const interception::Stack& stack) {
  for (c10::IValue& value : inputs)
    value = with_exchanged(value, [&](const at::Tensor& tensor) { return token_for(tensor); });
  Entry entry{op, std::move(inputs), {}, {}};
  bool has_meta = false;
  for (size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      // Real results need no replay, but keep their place in the list of outputs.
      const bool is_meta = tensor.is_meta();
      entry.outputs.push_back(is_meta ? tensor.unsafeGetTensorImpl() : nullptr);
      entry.alive.emplace_back(tensor.getIntrusivePtr());
      if (is_meta) known_.insert(tensor.unsafeGetTensorImpl());
      has_meta = has_meta || is_meta;
    });
  }
  if (has_meta) entries_.push_back(std::move(entry));
}

std::vector<at::Tensor> ConstructionTape::living() const {
  std::vector<at::Tensor> found;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const Entry& entry : entries_) {
    for (size_t i = 0; i < entry.outputs.size(); ++i) {
      if (entry.outputs[i] == nullptr || !seen.insert(entry.outputs[i]).second) continue;
      if (const auto tensor = entry.alive[i].lock()) found.emplace_back(at::Tensor(tensor));
    }
  }
  return found;
}

// A weak reference keeps a tensor's BackendMeta, and so its interceptors.
void ConstructionTape::release(const std::unordered_set<const c10::TensorImpl*>& tensors) {
  for (Entry& entry : entries_) {
    for (size_t i = 0; i < entry.outputs.size(); ++i) {
      if (tensors.count(entry.outputs[i]) > 0) entry.alive[i].reset();
    }
  }
}

bool ConstructionTape::writes_to(const Entry& entry, const Needed& needed) const {
  const auto& arguments = entry.op.schema().arguments();
  bool found = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    visit_tensors(entry.inputs[i], [&](const at::Tensor& tensor) {
      found = found || needed.tensors.count(identity_of(tensor)) > 0 || needed.storages.count(storage_of(tensor)) > 0;
    });
  }
  return found;
}

ConstructionTape::Values ConstructionTape::replay(const std::vector<at::Tensor>& requested) const {
  Needed needed;
  for (const at::Tensor& tensor : requested) needed.add(tensor, identity_of(tensor));
  std::vector<const Entry*> chosen;
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    const bool gives = std::any_of(entry->outputs.begin(), entry->outputs.end(), [&](const auto* output) {
      return output != nullptr && needed.tensors.count(output) > 0;
    });
    if (!gives && !writes_to(*entry, needed)) continue;
    chosen.push_back(&*entry);
    for (const c10::IValue& value : entry->inputs)
      visit_tensors(value, [&](const at::Tensor& tensor) { needed.add(tensor, identity_of(tensor)); });
  }

  const at::NoGradGuard no_grad;
  const interception::PassScope pass;
  Values values;
  for (auto entry = chosen.rbegin(); entry != chosen.rend(); ++entry) {
    interception::Stack stack;
    for (const c10::IValue& value : (*entry)->inputs) {
      stack.push_back(with_exchanged(value, [&](const at::Tensor& tensor) {
        const auto found = values.find(identity_of(tensor));
        return found == values.end() ? tensor : found->second;
      }));
    }
    (*entry)->op.callBoxed(stack);
    size_t index = 0;
    for (const c10::IValue& result : stack) {
      visit_tensors(result, [&](const at::Tensor& tensor) {
        if (index < (*entry)->outputs.size() && (*entry)->outputs[index] != nullptr)
          values[(*entry)->outputs[index]] = tensor;
        ++index;
      });
    }
  }
  return values;
}

}  // namespace hasten::offload::detail

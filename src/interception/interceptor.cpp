// See interceptor.h.
#include "hasten/interception/interceptor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/interception/before_scopes.h"
#include "hasten/interception/stack_tensors.h"
#include "interception/operator_table.h"

namespace hasten::interception {
namespace {

// libtorch's own tests use these keys and nothing else of it does.
constexpr auto kOperatorKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr auto kEveryOperatorKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

c10::DispatchKey key_of(Level level) {
  return level == Level::kOperators ? kOperatorKey : kEveryOperatorKey;
}

// key_set_ is protected, and there is no other way to add a key.
struct KeySetter : c10::TensorImpl {
  static void set(c10::TensorImpl& tensor, c10::DispatchKey key, bool on) {
    constexpr auto member = &KeySetter::key_set_;
    tensor.*member = on ? tensor.key_set().add(key) : tensor.key_set().remove(key);
  }
};

using Interceptors = std::vector<std::shared_ptr<Interceptor>>;

// Data of an intercepted tensor.
struct InterceptorList final : c10::BackendMeta {
  Interceptors all;
  /// The operators that each names, read once.
  std::vector<std::vector<std::string_view>> names;
  /// Each as what is asked before the scopes; null for those that are not.
  std::vector<const BeforeScopes*> before;

  void add(std::shared_ptr<Interceptor> interceptor) {
    names.push_back(interceptor->operators());
    before.push_back(dynamic_cast<const BeforeScopes*>(interceptor.get()));
    all.push_back(std::move(interceptor));
  }

  // Weak references (ByStorage) keep the object, and not what interceptors hold.
  void release_resources() override {
    all.clear();
    names.clear();
    before.clear();
  }
};

// A comparison of types, and no dynamic_cast: every operator on a marked tensor comes here.
InterceptorList* own_list(const at::TensorBase& tensor) {
  auto* const meta = tensor.unsafeGetTensorImpl()->get_backend_meta();
  return meta != nullptr && typeid(*meta) == typeid(InterceptorList) ? static_cast<InterceptorList*>(meta) : nullptr;
}

// Lists by storage, for keyed tensors that have neither a list nor a base that has one: t().detach(),
// view(dtype).
class ByStorage {
 public:
  static ByStorage& instance() {
    static ByStorage* const table = new ByStorage;  // tensors may outlive static objects
    return *table;
  }

  void add(const at::Tensor& tensor, const c10::intrusive_ptr<InterceptorList>& list) {
    if (!tensor.has_storage()) return;
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const auto& item) { return item.second.storage.expired(); });
    entries_.insert_or_assign(
        tensor.storage().unsafeGetStorageImpl(),
        Entry{tensor.storage().getWeakStorageImpl(), c10::weak_intrusive_ptr<InterceptorList>(list)});
  }
  c10::intrusive_ptr<InterceptorList> find(const at::TensorBase& tensor) {
    if (!tensor.has_storage()) return {};
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(tensor.storage().unsafeGetStorageImpl());
    return found == entries_.end() ? c10::intrusive_ptr<InterceptorList>() : found->second.list.lock();
  }

 private:
  struct Entry {
    // The weak reference keeps the address from being used again.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    c10::weak_intrusive_ptr<InterceptorList> list;
  };
  std::mutex mutex_;
  std::unordered_map<c10::StorageImpl*, Entry> entries_;
};

template <class Visit>
void visit_list(const at::TensorBase& tensor, const Visit& visit) {
  if (const auto* own = own_list(tensor)) return visit(*own);
  if (!tensor.is_inference() && tensor.is_view()) {
    if (const auto* of_base = own_list(tensor._base())) return visit(*of_base);
  }
  if (const auto of_storage = ByStorage::instance().find(tensor)) visit(*of_storage);
}

}  // namespace

Interceptors interceptors_of(const c10::OperatorHandle& op, const Stack& stack, Level level) {
  Interceptors found;
  const std::string& name = op.schema().name();
  const auto add_all = [&](const InterceptorList& list) {
    for (size_t i = 0; i < list.all.size(); ++i) {
      const auto& interceptor = list.all[i];
      const auto& selected = list.names[i];
      if (list.before[i] != nullptr || interceptor->level() != level) continue;
      if (level == Level::kOperators && std::find(selected.begin(), selected.end(), name) == selected.end()) continue;
      if (std::find(found.begin(), found.end(), interceptor) == found.end()) found.push_back(interceptor);
    }
  };
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.key_set().has(key_of(level))) visit_list(tensor, add_all);
    });
  }
  return found;
}

namespace {

// The interceptors of all tensor arguments that come before the scopes, each once, by their order.
c10::SmallVector<std::pair<int, std::shared_ptr<Interceptor>>, 2> asked_before(const c10::OperatorHandle& op,
                                                                               const Stack& stack) {
  c10::SmallVector<std::pair<int, std::shared_ptr<Interceptor>>, 2> found;
  const auto add_all = [&](const InterceptorList& list) {
    for (size_t i = 0; i < list.all.size(); ++i) {
      if (list.before[i] == nullptr) continue;
      const auto known = [&](const auto& item) { return item.second == list.all[i]; };
      if (std::none_of(found.begin(), found.end(), known)) found.emplace_back(list.before[i]->order(), list.all[i]);
    }
  };
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.key_set().has(kEveryOperatorKey)) visit_list(tensor, add_all);
    });
  }
  if (found.size() > 1) {
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  return found;
}

void operator_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const Interceptors interceptors = interceptors_of(op, *stack, Level::kOperators);
  if (interceptors.empty()) {
    // With the key still included, so that operators inside this one are intercepted.
    const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kOperatorKey);
    return op.redispatchBoxed(keys & below, stack);
  }
  const c10::impl::ExcludeDispatchKeyGuard guard(kOperatorKey);
  for (const auto& interceptor : interceptors) {
    if (interceptor->intercept(op, *stack)) return;
  }
  // Arguments may have changed, so their keys are collected anew.
  op.callBoxed(stack);
}

// Returns this thread's scopes, the innermost last.
std::vector<Interceptor*>& scopes() {
  thread_local std::vector<Interceptor*> stack;
  return stack;
}

// The scope whose interceptor is running, as an index of scopes().
class RunningScope {
 public:
  explicit RunningScope(size_t index) : before_(std::exchange(current(), index)) {}
  ~RunningScope() { current() = before_; }
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;

  static size_t& current() {
    thread_local size_t index = 0;
    return index;
  }

 private:
  size_t before_;
};

// Set for the one call by which call_after() leaves the key behind.
bool& passes_once() {
  thread_local bool passes = false;
  return passes;
}

// Asks the scopes from `num_scopes` - 1 outwards, then the interceptors of the arguments. Returns true if one of them
// has replaced the arguments by the results.
bool ask_every_operator(const c10::OperatorHandle& op, Stack& stack, size_t num_scopes) {
  const auto in_scope = scopes();
  for (size_t i = std::min(num_scopes, in_scope.size()); i-- > 0;) {
    const RunningScope running(i);
    if (in_scope[i]->intercept(op, stack)) return true;
  }
  for (const auto& interceptor : interceptors_of(op, stack, Level::kEveryOperator)) {
    if (interceptor->intercept(op, stack)) return true;
  }
  return false;
}

void every_operator_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (std::exchange(passes_once(), false)) {
    const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kEveryOperatorKey);
    return op.redispatchBoxed(keys & below, stack);
  }
  for (const auto& [order, interceptor] : asked_before(op, *stack)) {
    if (interceptor->intercept(op, *stack)) return;
  }
  const c10::impl::ExcludeDispatchKeyGuard guard(kEveryOperatorKey);
  if (!ask_every_operator(op, *stack, scopes().size())) op.callBoxed(stack);
}

bool in_table(std::string_view name) {
  constexpr std::string_view kNamespace = "aten::";
  if (!name.starts_with(kNamespace)) return false;
  name.remove_prefix(kNamespace.size());
  return std::any_of(kOperatorTable.begin(), kOperatorTable.end(),
                     [&](std::string_view entry) { return entry.substr(0, entry.find('.')) == name; });
}

void require_known(const Interceptor& interceptor) {
  for (const auto name : interceptor.operators()) {
    if (in_table(name)) continue;
    throw UsageError(Origin{"interception"}, "an interceptor names the operator '", name,
                     "', which has no kernel here. Add it to src/interception/operator_table.h.");
  }
}

// The kernels at the two keys, as long as the process lasts.
struct Kernels {
  using Library = torch::Library;
  Library operators{Library::IMPL, "_", kOperatorKey, __FILE__, __LINE__};
  Library every_operator{Library::IMPL, "_", kEveryOperatorKey, __FILE__, __LINE__};
  Library named{Library::IMPL, "aten", kOperatorKey, __FILE__, __LINE__};

  Kernels() {
    operators.fallback(torch::CppFunction::makeFallthrough());
    every_operator.fallback(torch::CppFunction::makeFromBoxedFunction<&every_operator_kernel>());
    for (const char* name : kOperatorTable) {
      named.impl(name, torch::CppFunction::makeFromBoxedFunction<&operator_kernel>());
    }
  }
};

// Registers before the first interceptor, not when the library is loaded. A process may hold two copies of the library,
// a Python module beside a user's own. libtorch ends it where a static initialiser registers a second time.
void register_kernels() {
  try {
    static const auto* const kernels = new Kernels;
    (void)kernels;
  } catch (const c10::Error& error) {
    throw UsageError(Origin{"interception"},
                     "another copy of this library in this process intercepts operators, and libtorch takes one "
                     "interceptor of a kind. Link both programs to one copy, or use what intercepts in one of them (",
                     error.what_without_backtrace(), ").");
  }
}

}  // namespace

void add_interceptor(const at::Tensor& tensor, std::shared_ptr<Interceptor> interceptor) {
  require_known(*interceptor);
  register_kernels();
  auto& impl = *tensor.unsafeGetTensorImpl();
  const auto list = c10::make_intrusive<InterceptorList>();
  if (const auto* own = own_list(tensor)) {
    for (const auto& other : own->all) list->add(other);
  }
  const auto key = key_of(interceptor->level());
  list->add(std::move(interceptor));
  // A list of its own: other tensors may share the one from before.
  impl.set_backend_meta(list);
  ByStorage::instance().add(tensor, list);
  KeySetter::set(impl, key, true);
}

void remove_interceptor(const at::Tensor& tensor, const Interceptor* interceptor) {
  const auto* own = own_list(tensor);
  if (own == nullptr) return;
  const auto list = c10::make_intrusive<InterceptorList>();
  for (const auto& other : own->all) {
    if (other.get() != interceptor) list->add(other);
  }
  auto& impl = *tensor.unsafeGetTensorImpl();
  for (const Level level : {Level::kOperators, Level::kEveryOperator}) {
    const auto is_of_level = [&](const auto& other) { return other->level() == level; };
    if (std::none_of(list->all.begin(), list->all.end(), is_of_level)) {
      KeySetter::set(impl, key_of(level), false);
    }
  }
  c10::intrusive_ptr<c10::BackendMeta> meta;
  if (!list->all.empty()) meta = list;
  impl.set_backend_meta(std::move(meta));
  ByStorage::instance().add(tensor, list);
}

SharedInterceptor::SharedInterceptor(Interceptor& interceptor) {
  register_kernels();
  const auto list = c10::make_intrusive<InterceptorList>();
  list->add(std::shared_ptr<Interceptor>(std::shared_ptr<void>(), &interceptor));
  list_ = list;
}

SharedInterceptor::~SharedInterceptor() = default;

void SharedInterceptor::mark(const at::Tensor& tensor) const {
  auto& impl = *tensor.unsafeGetTensorImpl();
  impl.set_backend_meta(list_);
  KeySetter::set(impl, kEveryOperatorKey, true);
}

Interceptors interceptors_of(const at::Tensor& tensor, Level level) {
  Interceptors found;
  if (!tensor.defined() || !tensor.key_set().has(key_of(level))) return found;
  visit_list(tensor, [&](const InterceptorList& list) {
    std::copy_if(list.all.begin(), list.all.end(), std::back_inserter(found),
                 [&](const auto& interceptor) { return interceptor->level() == level; });
  });
  return found;
}

bool is_below_autograd() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality);
}

struct EveryOperatorScope::Guard {
  c10::impl::IncludeDispatchKeyGuard include{kEveryOperatorKey};
};

EveryOperatorScope::EveryOperatorScope(Interceptor& interceptor) {
  register_kernels();
  guard_ = std::make_unique<Guard>();
  scopes().push_back(&interceptor);
}

EveryOperatorScope::~EveryOperatorScope() {
  scopes().pop_back();
}

void call_after(const c10::OperatorHandle& op, Stack& stack) {
  if (ask_every_operator(op, stack, RunningScope::current())) return;
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard force(keys.included_.add(kEveryOperatorKey),
                                               keys.excluded_.remove(kEveryOperatorKey));
  passes_once() = true;
  op.callBoxed(&stack);
}

struct PassScope::Guard {
  c10::impl::ExcludeDispatchKeyGuard operators{kOperatorKey}, every{kEveryOperatorKey};
};

PassScope::PassScope() : guard_(std::make_unique<Guard>()) {}

PassScope::~PassScope() = default;

}  // namespace hasten::interception

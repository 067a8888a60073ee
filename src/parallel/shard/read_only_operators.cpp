// See read_only_operators.h.
#include "parallel/shard/read_only_operators.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace hasten::parallel::shard {
namespace {

// Homes that are open; they close when the call has ended or thrown.
class OpenHomes {
 public:
  OpenHomes() = default;
  OpenHomes(const OpenHomes&) = delete;
  OpenHomes& operator=(const OpenHomes&) = delete;
  ~OpenHomes() {
    for (offload::Home* home : homes_) home->set_read_only_access(false);
  }
  void open(offload::Home* home) {
    home->set_read_only_access(true);
    homes_.push_back(home);
  }

 private:
  std::vector<offload::Home*> homes_;
};

}  // namespace

bool ReadOnlyOperators::intercept(const c10::OperatorHandle& op, interception::Stack& stack) {
  OpenHomes open;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined() || !stack[i].toTensor().has_storage()) continue;
    const auto home = homes_.find(stack[i].toTensor().storage().unsafeGetStorageImpl());
    if (home != homes_.end()) open.open(home->second);
  }
  op.callBoxed(stack);
  return true;
}

}  // namespace hasten::parallel::shard

// See reference_holders.h.
#include "rpc/reference_holders.h"

namespace hasten::rpc {

void ReferenceHolders::grant(const Grant& grant, int holder) {
  if (confirmed_.contains(grant)) return;
  if (dropped_.erase(grant) > 0) return;
  held_.emplace(grant, holder);
}

void ReferenceHolders::confirm(const Grant& grant, int holder) {
  if (!confirmed_.insert(grant).second) return;
  held_.emplace(grant, holder);
}

void ReferenceHolders::drop(const Grant& grant) {
  if (held_.erase(grant) == 0) dropped_.insert(grant);
}

void ReferenceHolders::lose(int worker) {
  const auto given = [&](const Grant& one) { return one.giver == static_cast<uint32_t>(worker); };
  // A grant of its that no holder has confirmed belongs to a message that was lost with it.
  std::erase_if(held_, [&](const auto& one) {
    return one.second == worker || (given(one.first) && !confirmed_.contains(one.first));
  });
  std::erase_if(dropped_, given);
  std::erase_if(confirmed_, given);
}

}  // namespace hasten::rpc

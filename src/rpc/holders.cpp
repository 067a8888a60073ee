// See holders.h.
#include "rpc/holders.h"

namespace hasten::rpc {

void Holders::grant(const Grant& grant, int holder) {
  if (confirmed_.contains(grant)) return;
  if (dropped_.erase(grant) > 0) return;
  held_.emplace(grant, holder);
}

void Holders::confirm(const Grant& grant, int holder) {
  if (!confirmed_.insert(grant).second) return;
  held_.emplace(grant, holder);
}

void Holders::drop(const Grant& grant) {
  if (held_.erase(grant) == 0) dropped_.insert(grant);
}

void Holders::lose(int worker) {
  std::erase_if(held_, [&](const auto& one) { return one.second == worker; });
  const auto given = [&](const Grant& one) { return one.giver == static_cast<uint32_t>(worker); };
  std::erase_if(dropped_, given);
  std::erase_if(confirmed_, given);
}

}  // namespace hasten::rpc

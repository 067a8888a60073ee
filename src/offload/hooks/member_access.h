// Access to a private member of libtorch's: an explicit instantiation, which stands in this namespace, may name it.
#pragma once

namespace hasten::offload::detail {

template <class Tag, auto Member>
struct MemberAccess {
  friend auto member_of(Tag) { return Member; }
};

}  // namespace hasten::offload::detail

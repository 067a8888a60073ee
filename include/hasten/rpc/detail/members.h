// The members of a plain struct as a tuple of references. It is the part of values.h that has to count.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

namespace hasten::rpc::detail {

struct AnyMember {
  template <class T>
  operator T() const;
};
template <class T, size_t... I>
constexpr bool has_members(std::index_sequence<I...>) {
  return requires { T{((void)I, AnyMember{})...}; };
}
template <class T, size_t N = 24>
constexpr size_t num_members() {
  if constexpr (N == 0) {
    return 0;
  } else if constexpr (has_members<T>(std::make_index_sequence<N>())) {
    return N;
  } else {
    return num_members<T, N - 1>();
  }
}

template <class T, size_t N = num_members<T>()>
constexpr auto members(T& value) {
  if constexpr (N == 1) {
    auto& [m0] = value;
    return std::tie(m0);
  }
  if constexpr (N == 2) {
    auto& [m0, m1] = value;
    return std::tie(m0, m1);
  }
  if constexpr (N == 3) {
    auto& [m0, m1, m2] = value;
    return std::tie(m0, m1, m2);
  }
  if constexpr (N == 4) {
    auto& [m0, m1, m2, m3] = value;
    return std::tie(m0, m1, m2, m3);
  }
  if constexpr (N == 5) {
    auto& [m0, m1, m2, m3, m4] = value;
    return std::tie(m0, m1, m2, m3, m4);
  }
  if constexpr (N == 6) {
    auto& [m0, m1, m2, m3, m4, m5] = value;
    return std::tie(m0, m1, m2, m3, m4, m5);
  }
  if constexpr (N == 7) {
    auto& [m0, m1, m2, m3, m4, m5, m6] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6);
  }
  if constexpr (N == 8) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7);
  }
  if constexpr (N == 9) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8);
  }
  if constexpr (N == 10) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9);
  }
  if constexpr (N == 11) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10);
  }
  if constexpr (N == 12) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11);
  }
  if constexpr (N == 13) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12);
  }
  if constexpr (N == 14) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13);
  }
  if constexpr (N == 15) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14);
  }
  if constexpr (N == 16) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15);
  }
  if constexpr (N == 17) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16);
  }
  if constexpr (N == 18) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17);
  }
  if constexpr (N == 19) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18);
  }
  if constexpr (N == 20) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19);
  }
  if constexpr (N == 21) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20);
  }
  if constexpr (N == 22) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21);
  }
  if constexpr (N == 23) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21, m22] =
        value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21,
                    m22);
  }
  if constexpr (N == 24) {
    auto& [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21, m22,
           m23] = value;
    return std::tie(m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15, m16, m17, m18, m19, m20, m21,
                    m22, m23);
  }
}

}  // namespace hasten::rpc::detail

// Ten lines of a user's program: a header of hasten's, a symbol of its library, libtorch beside it.
#if __has_include(<hasten/hasten.h>)
#include <hasten/hasten.h>
#endif
#include <hasten/core/version.h>
#include <torch/types.h>

#include <iostream>

#if __has_include(<hasten/hasten.h>)
using hasten::data::loader;  // what a first program names
using hasten::data::map;
#endif

int main() {
  std::cout << "hasten " << hasten::version() << ", sum " << torch::ones({2, 3}).sum().item<float>() << "\n";
}

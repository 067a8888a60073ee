#include "hasten/data/batch/can_be_placed.h"

#include <gtest/gtest.h>
#include <torch/data/example.h>

#include <map>
#include <string>

#include "hasten/comm/nested/nested_operations.h"

namespace hasten::data {
namespace {

struct Opaque {
  at::Tensor x;
};
struct Named {
  at::Tensor x;
  friend auto hasten_fields(Named& value) { return std::tie(value.x); }
};

// The question agrees with comm's walk: where the answer is yes, the walk compiles.
template <class T>
constexpr bool walked = can_be_placed<T> && requires(T value) { comm::send_to_device(value, c10::Device("cpu")); };

using Pair = std::pair<at::Tensor, std::vector<at::Tensor>>;
static_assert(walked<at::Tensor> && walked<Pair> && walked<std::tuple<int, at::Tensor>> && walked<Named>);
static_assert(walked<std::vector<Named>> && walked<std::map<std::string, at::Tensor>> && walked<std::vector<size_t>>);
static_assert(walked<torch::data::Example<>> && walked<std::vector<torch::data::TensorExample>>);
static_assert(walked<std::optional<at::Tensor>> && walked<std::array<at::Tensor, 2>>);
static_assert(!can_be_placed<Opaque> && !can_be_placed<std::vector<Opaque>>);
static_assert(!can_be_placed<std::pair<at::Tensor, Opaque>> && !can_be_placed<torch::data::Example<Opaque>>);

TEST(Place, AStructThatNamesItsTensorsIsWalked) {
  const Named batch{at::zeros({2})};

  const auto sent = comm::send_to_device(batch, c10::Device(c10::kCPU));

  EXPECT_TRUE(sent.x.is_same(batch.x));
}

TEST(Place, ASendKeepsTensorsThatAreThereAlready) {
  const torch::data::Example<> batch(at::zeros({2}), at::ones({2}));

  const auto sent = comm::send_to_device(batch, c10::Device(c10::kCPU), true);

  EXPECT_TRUE(sent.data.is_same(batch.data));
  EXPECT_TRUE(sent.target.is_same(batch.target));
}

}  // namespace
}  // namespace hasten::data

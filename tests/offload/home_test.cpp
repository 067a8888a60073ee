#include "hasten/offload/units/home.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>

#include "hasten/compat/storage_watch.h"
#include "hasten/core/error.h"
#include "hasten/core/memory_file.h"

namespace hasten::offload {
namespace {

// A page that the process reads through one mapping and writes through another.
class HomeTest : public ::testing::Test {
 protected:
  HomeTest() {
    std::memcpy(writable_.data(), tensor_.const_data_ptr(), tensor_.nbytes());
    tensor_.set_requires_grad(true);
  }
  at::DataPtr place() const { return {readable_.data(), c10::Device(c10::kCPU)}; }
  float* shared() const { return reinterpret_cast<float*>(writable_.data()); }

  const MemoryFile file_ = MemoryFile::create("test", 4096);
  const Mapping readable_ = file_.map(Mapping::Access::kRead);
  const Mapping writable_ = file_.map(Mapping::Access::kReadWrite);
  const at::Tensor tensor_ = torch::arange(12, at::kFloat).view({3, 4});
};

TEST_F(HomeTest, ATensorShowsTheBytesOfItsHomeAndStaysTheSameObject) {
  const at::Tensor alias = tensor_.detach(), view = tensor_[1];
  const auto* identity = tensor_.unsafeGetTensorImpl();
  const Home home(tensor_, place());

  shared()[4] = 42;

  EXPECT_EQ(tensor_.unsafeGetTensorImpl(), identity);
  EXPECT_EQ(tensor_[1][0].item<float>(), 42);
  EXPECT_EQ(alias[1][0].item<float>(), 42);
  EXPECT_EQ(view[0].item<float>(), 42);
  EXPECT_FALSE(home.is_private());
  EXPECT_TRUE(home.is_of(tensor_));
}

TEST_F(HomeTest, AWriteGetsAPrivateCopy) {
  const Home home(tensor_, place());
  const at::NoGradGuard no_grad;

  tensor_.mul_(2);

  EXPECT_TRUE(home.is_private());
  EXPECT_EQ(tensor_[0][1].item<float>(), 2);
  EXPECT_EQ(shared()[1], 1);
}

TEST_F(HomeTest, ComingBackShowsTheSharedBytesAndTheNextWriteLeavesAgain) {
  Home home(tensor_, place());
  const at::NoGradGuard no_grad;
  tensor_.mul_(2);

  home.restore();
  EXPECT_FALSE(home.is_private());
  EXPECT_EQ(tensor_[0][1].item<float>(), 1);
  tensor_.zero_();

  EXPECT_TRUE(home.is_private());
  EXPECT_EQ(shared()[1], 1);
}

TEST_F(HomeTest, TheTensorKeepsItsValuesWhenTheHomeGoes) {
  { const Home home(tensor_, place()); }
  const at::NoGradGuard no_grad;

  shared()[0] = 9;
  tensor_.add_(1);

  EXPECT_EQ(tensor_[0][0].item<float>(), 1);
}

TEST_F(HomeTest, AReplacedStorageIsNoticed) {
  const Home home(tensor_, place());

  tensor_.set_data(torch::zeros({3, 4}));

  EXPECT_FALSE(home.is_of(tensor_));
}

TEST_F(HomeTest, ReadOnlyAccessThroughMutablePointersNeedsNoCopy) {
  if (!compat::listeners_run_before_writes()) GTEST_SKIP() << "libtorch before 2.13 cannot tell";
  Home home(tensor_, place());

  home.set_read_only_access(true);
  (void)tensor_.mutable_data_ptr();
  EXPECT_FALSE(home.is_private());
  home.set_read_only_access(false);
  (void)tensor_.mutable_data_ptr();

  EXPECT_TRUE(home.is_private());
}

TEST(Home, ATensorWithoutStorageIsRefused) {
  EXPECT_THROW(Home(at::Tensor(), at::DataPtr()), UsageError);
}

}  // namespace
}  // namespace hasten::offload

#include "hasten/compat/storage_watch.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace hasten::compat {
namespace {

struct Counting : StorageListener {
  std::atomic<int> calls = 0;
  std::atomic<int> changes = 0;
  void before_write(c10::StorageImpl&) override { ++calls; }
  void on_changed(c10::StorageImpl&) override { ++changes; }
};

// Gives the writer a copy; the memory from before stays.
struct Leaving : StorageListener {
  std::vector<at::DataPtr> left;
  void before_write(c10::StorageImpl& storage) override {
    at::DataPtr copy = c10::GetCPUAllocator()->allocate(storage.nbytes());
    std::memcpy(copy.get(), storage.data(), storage.nbytes());
    left.push_back(std::move(const_cast<at::DataPtr&>(storage.data_ptr())));
    storage.set_data_ptr_noswap(std::move(copy));
  }
};

struct Refusing : StorageListener {
  void before_write(c10::StorageImpl&) override { throw std::runtime_error("'fc.weight' may not be written"); }
};

class StorageWatchTest : public ::testing::Test {
 protected:
  const at::NoGradGuard no_grad_;
  const at::Tensor tensor_ = torch::ones({4, 4});
  const std::shared_ptr<Counting> counting_ = std::make_shared<Counting>();
};

TEST_F(StorageWatchTest, ReadsCallNothing) {
  const StorageWatch watch(tensor_, counting_);

  (void)tensor_.const_data_ptr<float>();
  (void)tensor_.matmul(tensor_).sum().item<float>();
  (void)tensor_.clone();

  EXPECT_EQ(counting_->calls, 0);
}

TEST_F(StorageWatchTest, EveryListenerIsCalledOnceUntilItIsArmedAgain) {
  const auto second = std::make_shared<Counting>();
  StorageWatch watch(tensor_, counting_);
  StorageWatch other(tensor_, second);

  tensor_.mul_(2);
  tensor_[1].zero_();
  watch.check();
  EXPECT_EQ(counting_->calls, 1);
  EXPECT_EQ(second->calls, 1);
  watch.rearm();
  tensor_.data().mul_(2);
  watch.check();

  EXPECT_EQ(counting_->calls, 2);
  EXPECT_EQ(second->calls, 2);
}

TEST_F(StorageWatchTest, TheMemoryMayBeReplacedBeforeTheWrite) {
  if (!listeners_run_before_writes()) GTEST_SKIP() << "libtorch before 2.13 copies by itself";
  const auto leaving = std::make_shared<Leaving>();
  const StorageWatch watch(tensor_, leaving);
  const auto* home = tensor_.const_data_ptr<float>();

  tensor_.mul_(2);

  EXPECT_NE(tensor_.const_data_ptr<float>(), home);
  EXPECT_EQ(home[0], 1);
  EXPECT_EQ(tensor_[0][0].item<float>(), 2);
}

TEST_F(StorageWatchTest, AListenerThatThrowsRefusesTheWriteEachTime) {
  if (!listeners_run_before_writes()) GTEST_SKIP() << "libtorch before 2.13 cannot refuse";
  const StorageWatch watch(tensor_, std::make_shared<Refusing>());

  EXPECT_THROW(tensor_.mul_(2), std::runtime_error);
  EXPECT_THROW(tensor_.mul_(2), std::runtime_error);

  EXPECT_EQ(tensor_[0][0].item<float>(), 1);
}

TEST_F(StorageWatchTest, EightWritersAtOnceCallOnce) {
  const StorageWatch watch(tensor_, counting_);
  std::vector<std::thread> writers;

  for (int i = 0; i < 8; ++i) writers.emplace_back([&] { (void)tensor_.mutable_data_ptr(); });
  for (auto& writer : writers) writer.join();

  EXPECT_EQ(counting_->calls, listeners_run_before_writes() ? 1 : 0);
}

TEST_F(StorageWatchTest, AListenerThatIsGoneIsNotCalled) {
  { const StorageWatch watch(tensor_, counting_); }

  tensor_.mul_(2);

  EXPECT_EQ(counting_->calls, 0);
  EXPECT_EQ(tensor_[0][0].item<float>(), 2);
}

TEST_F(StorageWatchTest, ADisarmedWatchLetsMutablePointersPass) {
  if (!listeners_run_before_writes()) GTEST_SKIP() << "libtorch before 2.13 has nothing to disarm";
  StorageWatch watch(tensor_, counting_);

  watch.disarm();
  (void)tensor_.mutable_data_ptr();
  EXPECT_EQ(counting_->calls, 0);
  watch.rearm();
  (void)tensor_.mutable_data_ptr();

  EXPECT_EQ(counting_->calls, 1);
}

TEST_F(StorageWatchTest, AChangePastTheStorageIsTold) {
  const StorageWatch watch(tensor_, counting_);

  notify_changed(tensor_);

  EXPECT_EQ(counting_->changes, 1);
  EXPECT_EQ(counting_->calls, 0);
}

TEST_F(StorageWatchTest, ACopyOnWriteStorageIsMadeWholeFirst) {
  const at::Tensor clone = at::_lazy_clone(tensor_);
  const StorageWatch watch(tensor_, counting_);

  tensor_.mul_(2);

  EXPECT_EQ(clone[0][0].item<float>(), 1);
}

}  // namespace
}  // namespace hasten::compat

#include "hasten/flight/symbols.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

__attribute__((noinline)) int a_function_of_the_program(int value) {
  asm volatile("" : "+r"(value));
  return value + 1;
}

namespace hasten::flight {
namespace {

TEST(Symbols, NamesLoseArgumentsAndTemplates) {
  EXPECT_EQ(short_name("train_step(at::Tensor&, std::vector<int, std::allocator<int> >)"), "train_step");
  EXPECT_EQ(short_name("torch::nn::Module::train(bool)"), "torch::nn::Module::train");
  EXPECT_EQ(short_name("void run<int, (anonymous namespace)::Net>(int)"), "run");
  EXPECT_EQ(short_name("std::function<void (int)>::operator()(int) const"), "std::function::operator()");
  EXPECT_EQ(short_name("(anonymous namespace)::helper(int)"), "(anonymous namespace)::helper");
  EXPECT_EQ(short_name("main"), "main");
}

TEST(Symbols, FunctionsOfTheProgramAndOfLibrariesAreNamed) {
  const auto own = reinterpret_cast<uint64_t>(&a_function_of_the_program);
  const auto library = reinterpret_cast<uint64_t>(&std::getenv);

  const auto frames = name_addresses(getpid(), {own + 1, library + 1, 16});

  EXPECT_EQ(frames[0].function, "a_function_of_the_program");
  EXPECT_TRUE(frames[0].in_program);
  EXPECT_EQ(frames[1].function, "getenv");
  EXPECT_TRUE(frames[1].place.starts_with("libc.so")) << frames[1].place;
  EXPECT_FALSE(frames[1].in_program);
  EXPECT_EQ(frames[2].function, "");
}

TEST(Symbols, WaitsForADeviceAreToldByTheFunctionsOfTheHost) {
  EXPECT_EQ(device_wait({"__GI___poll", "cuStreamSynchronize", "at::native::_local_scalar_dense_cuda", "main"}),
            "a value from its device (cuStreamSynchronize)");
  EXPECT_EQ(device_wait({"cudaStreamSynchronize", "c10::cuda::memcpy_and_sync", "at::_ops::copy_::call", "main"}),
            "a copy from or to its device (cudaStreamSynchronize)");
  EXPECT_EQ(device_wait({"cudaEventSynchronize", "main"}), "an event of its device (cudaEventSynchronize)");
  EXPECT_EQ(device_wait({"c10::cuda::device_synchronize", "main"}), "its device (c10::cuda::device_synchronize)");
  EXPECT_EQ(device_wait({"cudaStreamSynchronize", "main"}), "a stream of its device (cudaStreamSynchronize)");
  EXPECT_EQ(device_wait({"at::_ops::copy_::call", "main"}), "") << "a copy on the host";
}

TEST(Symbols, AStackOfLibrariesAloneIsShownAsItIs) {
  StackState stack{.thread = 1, .frames = {reinterpret_cast<uint64_t>(&std::getenv) + 4}};
  EXPECT_TRUE(stack_text(getpid(), stack).starts_with("getenv (libc.so")) << stack_text(getpid(), stack);

  stack.scanned = {reinterpret_cast<uint64_t>(&a_function_of_the_program) + 4};
  EXPECT_TRUE(stack_text(getpid(), stack).starts_with("~a_function_of_the_program (flight_unit_tests)"))
      << stack_text(getpid(), stack);
}

}  // namespace
}  // namespace hasten::flight

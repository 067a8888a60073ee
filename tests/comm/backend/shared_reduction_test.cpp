#include "comm/backend/reduction.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

namespace hasten::comm::shared {
namespace {

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte,
                                             at::kChar,  at::kShort,  at::kInt,  at::kLong};

// Each instruction set that this processor has.
std::vector<const char*> instruction_sets() {
  std::vector<const char*> found;
  for (const char* name : {"generic", "avx2", "avx512"}) {
    if (routines(at::kFloat, ReduceOp::kSum, name).reduce != nullptr) found.push_back(name);
  }
  return found;
}

at::Tensor reduce(const Routines& how, const std::vector<at::Tensor>& inputs) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data_ptr());
  at::Tensor output = torch::empty_like(inputs[0]);
  how.reduce(output.data_ptr(), pointers.data(), static_cast<int>(pointers.size()), output.numel());
  return output;
}

// The same with one input at a time, the last of them written to its own place.
at::Tensor fold(const Folding& how, const std::vector<at::Tensor>& inputs) {
  const int64_t count = inputs[0].numel();
  at::Tensor partial = torch::empty({count * how.partial_bytes}, at::kByte), output = inputs.back().clone();
  how.first(partial.data_ptr(), inputs[0].data_ptr(), count);
  for (size_t i = 1; i + 1 < inputs.size(); ++i) how.next(partial.data_ptr(), inputs[i].data_ptr(), count);
  how.last(output.data_ptr(), partial.data_ptr(), output.data_ptr(), static_cast<int>(inputs.size()), count);
  return output;
}

// What torch gives, added up in the order of the inputs; half and bfloat16 in float, rounded once.
at::Tensor expected(ReduceOp op, const std::vector<at::Tensor>& inputs) {
  const auto dtype = inputs[0].scalar_type();
  const auto wide = dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
  at::Tensor result = inputs[0].to(wide);
  for (size_t i = 1; i < inputs.size(); ++i) {
    const at::Tensor next = inputs[i].to(wide);
    if (op == ReduceOp::kSum || op == ReduceOp::kMean) result = result + next;
    if (op == ReduceOp::kProduct) result = result * next;
    if (op == ReduceOp::kMin) result = torch::minimum(result, next);
    if (op == ReduceOp::kMax) result = torch::maximum(result, next);
  }
  if (op == ReduceOp::kMean) result = result / static_cast<double>(inputs.size());
  return result.to(dtype);
}

std::vector<at::Tensor> values(at::ScalarType dtype, int num_inputs, int64_t count, at::Generator generator) {
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < num_inputs; ++i) {
    inputs.push_back(at::isFloatingType(dtype) ? torch::randn({count}, generator).to(dtype)
                                               : torch::randint(-100, 100, {count}, generator).to(dtype));
  }
  return inputs;
}

TEST(SharedReduction, EqualsTorchForEveryDtypeOperationAndInstructionSet) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(3);
  for (const char* instructions : instruction_sets()) {
    for (const auto dtype : kDtypes) {
      for (const auto op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
        if (op == ReduceOp::kMean && !at::isFloatingType(dtype)) continue;
        for (const int num_inputs : {1, 2, 3, 5}) {
          for (const int64_t count : {1, 7, 64, 1023, 3000}) {
            const auto inputs = values(dtype, num_inputs, count, generator);

            const Routines how = routines(dtype, op, instructions);
            const at::Tensor at_once = reduce(how, inputs);
            const at::Tensor one_by_one = num_inputs > 1 ? fold(how.fold, inputs) : at_once;

            ASSERT_TRUE(torch::equal(at_once, expected(op, inputs)) && torch::equal(one_by_one, at_once))
                << instructions << ' ' << dtype << " operation " << static_cast<int>(op) << ", " << num_inputs
                << " inputs of " << count;
          }
        }
      }
    }
  }
}

TEST(SharedReduction, InstructionSetsAgreeBitForBit) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  for (const auto dtype : kDtypes) {
    const auto inputs = values(dtype, 4, 5000, generator);
    const at::Tensor generic = reduce(routines(dtype, ReduceOp::kSum, "generic"), inputs);
    for (const char* instructions : instruction_sets()) {
      EXPECT_TRUE(torch::equal(reduce(routines(dtype, ReduceOp::kSum, instructions), inputs), generic))
          << instructions << ' ' << dtype;
    }
  }
}

TEST(SharedReduction, NotANumberIsKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const auto a = torch::tensor({nan, 1.0F, infinity, 2.0F}), b = torch::tensor({1.0F, nan, 1.0F, -infinity});
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
      for (const char* instructions : instruction_sets()) {
        const at::Tensor result = reduce(routines(dtype, op, instructions), {a.to(dtype), b.to(dtype)});

        EXPECT_TRUE(torch::equal(result.isnan(), torch::tensor({true, true, false, false}))) << dtype << result;
        EXPECT_TRUE(torch::equal(result.slice(0, 2), expected(op, {a.to(dtype), b.to(dtype)}).slice(0, 2)));
      }
    }
  }
}

TEST(SharedReduction, TheOutputMayBeAnInput) {
  for (const int num_inputs : {2, 3}) {
    auto inputs = values(at::kFloat, num_inputs, 4000, at::make_generator<at::CPUGeneratorImpl>(7));
    const at::Tensor wanted = expected(ReduceOp::kSum, inputs);
    std::vector<const void*> pointers;
    for (const auto& input : inputs) pointers.push_back(input.data_ptr());

    routines(at::kFloat, ReduceOp::kSum).reduce(inputs.back().data_ptr(), pointers.data(), num_inputs, 4000);

    EXPECT_TRUE(torch::equal(inputs.back(), wanted));
  }
}

TEST(SharedReduction, OtherDtypesAreLeftToTheGroup) {
  EXPECT_EQ(routines(at::kInt, ReduceOp::kMean).reduce, nullptr);
  for (const auto dtype : {at::kBool, at::kComplexFloat, at::kFloat8_e4m3fn}) {
    EXPECT_EQ(routines(dtype, ReduceOp::kSum).reduce, nullptr) << dtype;
  }
}

}  // namespace
}  // namespace hasten::comm::shared

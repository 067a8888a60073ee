// Calls of libtorch's operators by name; see agent.h, call_operator.
#include "rpc/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/types.h>

#include <utility>

#include "hasten/core/error.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/novograd.h"
#include "hasten/rpc/agent.h"
#include "hasten/rpc/distributed_optimizer.h"

namespace hasten::rpc {
namespace {

enum class ValueKind : uint8_t { kNone, kTensor, kInt, kDouble, kBool, kString, kIntList, kDoubleList, kTensorList };

void write_value(Writer& to, const c10::IValue& value) {
  const auto kind = [&](ValueKind k) { to.number(static_cast<uint8_t>(k)); };
  if (value.isNone()) return kind(ValueKind::kNone);
  if (value.isTensor()) return kind(ValueKind::kTensor), to.tensor(value.toTensor());
  if (value.isBool()) return kind(ValueKind::kBool), to.number(value.toBool());
  if (value.isInt()) return kind(ValueKind::kInt), to.number(value.toInt());
  if (value.isDouble()) return kind(ValueKind::kDouble), to.number(value.toDouble());
  if (value.isString()) return kind(ValueKind::kString), to.string(value.toStringRef());
  if (value.isIntList()) return kind(ValueKind::kIntList), detail::write(to, value.toIntVector());
  if (value.isDoubleList()) return kind(ValueKind::kDoubleList), detail::write(to, value.toDoubleVector());
  if (value.isTensorList()) return kind(ValueKind::kTensorList), detail::write(to, value.toTensorVector());
  throw UsageError({"rpc"}, "an argument of type ", value.tagKind(), " of an operator cannot travel.");
}

c10::IValue read_value(Reader& from) {
  switch (static_cast<ValueKind>(from.number<uint8_t>())) {
    case ValueKind::kNone:
      return {};
    case ValueKind::kTensor:
      return from.tensor();
    case ValueKind::kInt:
      return from.number<int64_t>();
    case ValueKind::kDouble:
      return from.number<double>();
    case ValueKind::kBool:
      return from.number<uint8_t>() != 0;
    case ValueKind::kString:
      return from.string();
    case ValueKind::kIntList:
      return detail::read<std::vector<int64_t>>(from);
    case ValueKind::kDoubleList:
      return detail::read<std::vector<double>>(from);
    case ValueKind::kTensorList:
      return detail::read<std::vector<at::Tensor>>(from);
  }
  from.fail("has an operator's argument of an unknown kind");
}

struct OperatorArguments {
  std::vector<c10::IValue> values;
};

std::vector<c10::IValue> run_operator(const std::string& name, std::vector<c10::IValue> stack) {
  const size_t colon = name.find("::"), dot = name.find('.', colon == std::string::npos ? 0 : colon);
  const std::string base = name.substr(0, dot), overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  const auto found = c10::Dispatcher::singleton().findSchema({base, overload});
  if (colon == std::string::npos || !found)
    throw UsageError({"rpc"}, "'", name, "' is no operator of libtorch; expected a name such as aten::add.Tensor.");
  const auto& schema = found->schema();
  if (stack.size() > schema.arguments().size())
    throw UsageError({"rpc"}, name, " takes ", schema.arguments().size(), " arguments; ", stack.size(), " were given.");
  for (size_t i = stack.size(); i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (!argument.default_value()) throw UsageError({"rpc"}, name, " needs its argument '", argument.name(), "'.");
    stack.push_back(*argument.default_value());
  }
  found->callBoxed(stack);
  return stack;
}

}  // namespace

template <>
struct Codec<OperatorArguments> {
  static void write(Writer& to, const OperatorArguments& arguments) {
    to.size(arguments.values.size());
    for (const auto& value : arguments.values) write_value(to, value);
  }
  static OperatorArguments read(Reader& from) {
    OperatorArguments arguments;
    const size_t count = from.size();
    for (size_t i = 0; i < count; ++i) arguments.values.push_back(read_value(from));
    return arguments;
  }
  static std::string describe() { return "operator values"; }
};

void add_optimizers(Functions& functions) {
  add_optimizer<torch::optim::SGD>(functions);
  add_optimizer<torch::optim::Adam>(functions);
  add_optimizer<torch::optim::AdamW>(functions);
  add_optimizer<torch::optim::Adagrad>(functions);
  add_optimizer<torch::optim::RMSprop>(functions);
  add_optimizer<optim::ApexAdam>(functions);
  add_optimizer<optim::ApexSgd>(functions);
  add_optimizer<optim::Lamb>(functions);
  add_optimizer<optim::NovoGrad>(functions);
}

void add_operators(Functions& functions) {
  functions.add("hasten.operator", [](const std::string& name, const OperatorArguments& arguments) {
    return OperatorArguments{run_operator(name, arguments.values)};
  });
}

std::vector<c10::IValue> Calls::call_operator(const To& to, const std::string& name,
                                              std::vector<c10::IValue> arguments) const {
  return call<OperatorArguments>(to, "hasten.operator", name, OperatorArguments{std::move(arguments)}).values;
}

}  // namespace hasten::rpc

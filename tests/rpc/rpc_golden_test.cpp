// Gradients of contexts, steps of optimizers, futures and names, beside what torch.distributed.rpc gave
// (scripts/record_rpc_golden.py). Contexts run in real processes, since libtorch has one container of contexts a
// process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <iostream>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/rpc/rpc.h"
#include "support/golden.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace hasten::rpc {
namespace {

using hasten::testing::GoldenCase;
using hasten::testing::GoldenTopic;
using nlohmann::json;

std::function<bool(const GoldenCase&)> family(const std::string& name) {
  return [name](const GoldenCase& one) { return one.family == name; };
}

at::Tensor tensor_of(const json& rows) {
  std::vector<float> values;
  for (const auto& row : rows) {
    for (const auto& value : row) values.push_back(value.get<float>());
  }
  const auto num_rows = static_cast<int64_t>(rows.size());
  return torch::tensor(values).reshape({num_rows, static_cast<int64_t>(values.size()) / num_rows});
}

json json_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  json rows = json::array();
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    json row = json::array();
    for (int64_t j = 0; j < tensor.size(1); ++j) row.push_back(tensor[i][j].item<float>());
    rows.push_back(row);
  }
  return rows;
}

// A worker's own matrix.
struct Cell {
  at::Tensor weight;
  void set(const at::Tensor& value) { weight = value.clone().requires_grad_(); }
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(x.matmul(weight)); }
  at::Tensor loss(const at::Tensor& x) { return forward(x).sum(); }
  at::Tensor chain(const RRef<Cell>& next, const at::Tensor& x) { return next.sync<&Cell::forward>(forward(x)); }
  at::Tensor gradient(const AutogradContext& context) { return context.gradient(weight); }
  RRef<at::Tensor> weight_rref() { return call().rref(weight); }
  at::Tensor value() { return weight.detach(); }
};

std::vector<RRef<Cell>> cells_of(const Agent& agent, const json& weights) {
  std::vector<RRef<Cell>> cells;
  for (size_t worker = 0; worker < weights.size(); ++worker) {
    cells.push_back(agent.remote<Cell>(static_cast<int>(worker)));
    cells.back().sync<&Cell::set>(tensor_of(weights[worker]));
  }
  return cells;
}

json run_context(const Agent& agent, const json& input) {
  const auto cells = cells_of(agent, input.at("weights"));
  const auto x = tensor_of(input.at("x")).requires_grad_();
  json result;
  agent.autograd([&](AutogradContext& context) {
    std::vector<at::Tensor> values = {x};
    for (const auto& step : input.at("steps")) {
      const at::Tensor& source = values.at(step.at("input").get<size_t>());
      const std::string op = step.at("op");
      const auto cell = [&](const char* key) { return cells.at(step.at(key).get<size_t>()); };
      if (op == "add") {
        values.push_back(source + values.at(step.at("other").get<size_t>()));
      } else if (op == "forward") {
        values.push_back(cell("worker").sync<&Cell::forward>(source));
      } else if (op == "chain") {
        values.push_back(cell("worker").sync<&Cell::chain>(cell("next"), source));
      } else if (op == "to_here") {
        values.push_back(cell("worker").remote<&Cell::forward>(source).to_here());
      } else {
        throw std::runtime_error("unknown step " + op);
      }
    }
    const int passes = input.at("passes");
    if (input.at("root") == "reference") {
      const auto root = cells.at(input.at("root_worker").get<size_t>()).remote<&Cell::loss>(values.back());
      for (int pass = 1; pass <= passes; ++pass) root.backward(context, {.retain_graph = pass < passes});
    } else {
      const auto root = values.back().pow(2).sum();
      for (int pass = 1; pass <= passes; ++pass) context.backward({root}, {.retain_graph = pass < passes});
    }
    result["x"] = json_of(context.gradient(x));
    result["weights"] = json::array();
    for (const auto& one : cells) result["weights"].push_back(json_of(one.sync<&Cell::gradient>(context)));
  });
  return result;
}

template <class O, class Options>
json step_all(const Agent& agent, const json& input, const Options& options) {
  const auto cells = cells_of(agent, input.at("weights"));
  const DistributedOptimizer<O> optimizer(
      agent, {cells.at(1).sync<&Cell::weight_rref>(), cells.at(2).sync<&Cell::weight_rref>()}, options);
  for (const auto& x : input.at("inputs")) {
    agent.autograd([&](AutogradContext& context) {
      context.backward({cells[2].sync<&Cell::forward>(cells[1].sync<&Cell::forward>(tensor_of(x))).pow(2).sum()});
      optimizer.step(context);
    });
  }
  return {{"weights", {json_of(cells[1].sync<&Cell::value>()), json_of(cells[2].sync<&Cell::value>())}}};
}

json run_optimizer(const Agent& agent, const json& input) {
  const json& given = input.at("options");
  const double rate = given.at("lr");
  const std::string name = input.at("optimizer");
  if (name == "SGD") {
    return step_all<torch::optim::SGD>(agent, input,
                                       torch::optim::SGDOptions(rate)
                                           .momentum(given.value("momentum", 0.0))
                                           .weight_decay(given.value("weight_decay", 0.0)));
  }
  if (name == "Adam") {
    const auto betas = given.value("betas", std::vector<double>{0.9, 0.999});
    return step_all<torch::optim::Adam>(agent, input,
                                        torch::optim::AdamOptions(rate).betas({betas.at(0), betas.at(1)}));
  }
  if (name == "Adagrad")
    return step_all<torch::optim::Adagrad>(agent, input,
                                           torch::optim::AdagradOptions(rate).eps(given.value("eps", 1e-10)));
  throw std::runtime_error("unknown optimizer " + name);
}

// Worker 0 runs the cases and prints what each gave.
HASTEN_PROCESS_CASE(golden_rpc) {
  process::Process process({.cpu = true});
  Functions functions;
  functions.add_class<Cell>().add<&Cell::set>().add<&Cell::forward>().add<&Cell::loss>().add<&Cell::chain>();
  functions.add<&Cell::gradient>().add<&Cell::weight_rref>().add<&Cell::value>();
  Agent agent(process, functions);
  if (process.rank() == 0) {
    for (const char* name : {"context", "optimizer"}) {
      const GoldenTopic topic("rpc", family(name));
      for (const auto& golden : topic.cases()) {
        const json given = hasten::testing::outcome_of([&] {
          return golden.family == "context" ? run_context(agent, golden.input) : run_optimizer(agent, golden.input);
        });
        std::cout << "RESULT " << json{{"case", golden.name}, {"given", given}}.dump() << std::endl;
      }
    }
  }
  agent.shutdown();
  return 0;
}

TEST(RpcGolden, ContextsAndOptimizersGiveThePeersValues) {
  const auto results = hasten::testing::run_processes(3, "golden_rpc");
  std::map<std::string, json> given;
  std::istringstream lines(results[0].output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("RESULT ")) continue;
    const json one = json::parse(line.substr(7));
    given[one.at("case")] = one.at("given");
  }

  for (const char* name : {"context", "optimizer"}) {
    GoldenTopic topic("rpc", family(name));
    topic.tolerate({.absolute = 1e-5});
    topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return given.at(golden.name); }); });
    topic.finish();
  }
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
}

// Runs a program of futures; see run_program in the recorder.
class FutureProgram {
 public:
  json run(const json& program) {
    int64_t step = 0;
    for (const auto& one : program) take(one, step++);
    return {{"log", log_}};
  }

 private:
  void take(const json& one, int64_t step) {
    const std::string op = one.at(0);
    if (op == "new") {
      promises_.emplace(futures_.size(), Promise<int64_t>());
      futures_.push_back(promises_.at(futures_.size()).future());
      return;
    }
    if (op == "collect") return collect(one.at(1).get<std::vector<size_t>>(), step);
    const size_t number = one.at(1);
    const auto& future = futures_.at(number);
    if (op == "then") {
      futures_.push_back(future.then([this, number](Future<int64_t> done) {
        log_.push_back("then " + noted(number, done));
        return done.value() + 1;
      }));
    } else if (op == "done") {
      future.add_done_callback([this, number, step](const Future<int64_t>& done) {
        log_.push_back("done " + std::to_string(step) + " " + noted(number, done));
      });
    } else if (op == "set") {
      promises_.at(number).set(one.at(2).get<int64_t>());
    } else if (op == "fail") {
      promises_.at(number).fail(std::runtime_error("failed " + std::to_string(one.at(2).get<int64_t>())));
    } else if (op == "wait") {
      log_.push_back("wait " + (future.done() ? noted(number, future) : std::to_string(number) + " open"));
    } else {
      throw std::runtime_error("unknown step " + op);
    }
  }
  void collect(const std::vector<size_t>& numbers, int64_t step) {
    std::vector<Future<int64_t>> some;
    for (const size_t number : numbers) some.push_back(futures_.at(number));
    collect_all(some).add_done_callback([this, step](const Future<std::vector<Future<int64_t>>>& done) {
      std::string line = "collected " + std::to_string(step) + " ";
      try {
        std::string values;
        for (const auto& one : done.value()) values += (values.empty() ? "" : ", ") + std::to_string(one.value());
        line += "[" + values + "]";
      } catch (const std::exception& error) {
        line += std::string("!") + error.what();
      }
      log_.push_back(line);
    });
  }
  static std::string noted(size_t number, const Future<int64_t>& future) {
    try {
      return std::to_string(number) + "=" + std::to_string(future.value());
    } catch (const std::exception& error) {
      return std::to_string(number) + "!" + error.what();
    }
  }
  std::vector<std::string> log_;  // ends last: promises that nothing has completed fail, which is noted
  std::vector<Future<int64_t>> futures_;
  std::map<size_t, Promise<int64_t>> promises_;
};

TEST(RpcGolden, FuturesKeepThePeersOrderAndErrors) {
  GoldenTopic topic("rpc", family("future"));
  topic.for_each([&](GoldenCase golden) {
    // Python's agent puts a sentence and the type of the exception before the text of one that a callback rethrows.
    const std::string words = "Got the following error when running the callback: RuntimeError: ";
    for (auto& line : golden.expected.at("log")) {
      std::string kept = line;
      for (auto found = kept.find(words); found != std::string::npos; found = kept.find(words))
        kept.erase(found, words.size());
      line = kept;
    }
    FutureProgram program;
    topic.judge(golden, [&] { return program.run(golden.input.at("program")); });
  });
  topic.finish();
}

TEST(RpcGolden, NamesAreGoodWhereThePeersAre) {
  GoldenTopic topic("rpc", family("name"));
  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&] {
      bool good = true;
      hasten::testing::run_ranks(1, [&](process::Process& process) {
        try {
          Agent agent(process, {}, {.name = golden.input.at("name").get<std::string>()});
          agent.shutdown();
        } catch (const UsageError&) {
          good = false;
        }
      });
      return json{{"good", good}};
    });
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten::rpc

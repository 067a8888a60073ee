// See order_picture.h.
#include "hasten/plan/order_picture.h"

#include <algorithm>
#include <cmath>

#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

class Picture {
 public:
  Picture(const PipelineOrder& order, const std::vector<StageCost>& costs, const PictureOptions& options)
      : order_(order),
        costs_(costs),
        timeline_(simulate(order, costs)),
        unit_s_(options.unit_s),
        most_cells_(options.most_cells) {
    if (unit_s_ <= 0) unit_s_ = shortest();
    end_ = cell_at(timeline_.seconds);
    const bool letters = order.num_stages > static_cast<int>(order.ranks.size());
    width_ = std::to_string(order.num_microbatches - 1).size() + (letters ? 3 : 2);
  }

  std::string text_of_all() const {
    const size_t digits = std::to_string(order_.ranks.size() - 1).size();
    std::string out;
    for (size_t rank = 0; rank < order_.ranks.size(); ++rank) {
      std::string number = std::to_string(rank);
      number.resize(digits, ' ');
      out += text("rank ", number, " |");
      std::string row;
      for (std::string cell : cells_of(rank)) {
        cell.resize(width_, ' ');
        row += cell;
      }
      while (!row.empty() && row.back() == ' ') row.pop_back();
      out += row + (end_ > most_cells_ ? " …" : "") + "\n";
    }
    return out;
  }

 private:
  double seconds_of(const Action& action) const {
    const StageCost& cost = costs_[costs_.size() == 1 ? 0 : static_cast<size_t>(action.stage)];
    return action_seconds(action, cost);
  }
  double shortest() const {
    double least = timeline_.seconds;
    for (const auto& row : order_.ranks) {
      for (const Action& action : row) {
        if (seconds_of(action) > 0) least = std::min(least, seconds_of(action));
      }
    }
    return least > 0 ? least : 1;
  }
  size_t cell_at(double seconds) const { return static_cast<size_t>(std::lround(seconds / unit_s_)); }

  std::vector<std::string> cells_of(size_t rank) const {
    const auto& row = order_.ranks[rank];
    std::vector<std::string> cells(std::min(end_, most_cells_), ".");
    std::vector<int> stages;
    for (const Action& action : row) stages.push_back(action.stage);
    std::sort(stages.begin(), stages.end());
    stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
    for (size_t i = 0; i < row.size(); ++i) {
      const double start = timeline_.starts_s[rank][i];
      const size_t from = cell_at(start), to = std::min(cell_at(start + seconds_of(row[i])), cells.size());
      const auto place = std::find(stages.begin(), stages.end(), row[i].stage) - stages.begin();
      const std::string letter = place > 0 ? std::string(1, static_cast<char>('a' + place % 26)) : "";
      for (size_t cell = from; cell < to; ++cell) {
        cells[cell] = cell > from ? std::string(width_ - 1, '-')
                                  : text(static_cast<char>(row[i].kind), row[i].microbatch, letter);
      }
    }
    return cells;
  }

  const PipelineOrder& order_;
  const std::vector<StageCost>& costs_;
  Timeline timeline_;
  double unit_s_;
  size_t most_cells_, end_ = 0, width_ = 0;
};

}  // namespace

std::string draw_order(const PipelineOrder& order, const std::vector<StageCost>& costs, const PictureOptions& options) {
  return Picture(order, costs, options).text_of_all();
}

}  // namespace hasten::plan

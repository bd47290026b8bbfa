// One step: the whole stack over a mixed batch, by all threads together.
#pragma once

#include <chrono>

#include "batch.hpp"
#include "kv_cache.hpp"
#include "rope_angles.hpp"
#include "thread_pool.hpp"
#include "workspace.hpp"

namespace gristmill {

enum class Operation : int {
  embed, prepare, qkv, append, attend, o, gate_up, down, router, experts_gate_up, experts_down, experts_sum,
  head, count
};
constexpr const char* kOperationNames[] = {"embed", "prepare", "qkv", "append", "attend", "o", "gate_up", "down",
                                           "router", "experts_gate_up", "experts_down", "experts_sum", "head"};

struct StepOptions {
  bool integer_activations;  // int8 panels for integer weights; otherwise bfloat16
  bool debug_nan;            // look for values that are not finite after every layer
  bool profile;
};

class Step {
 public:
  Step(const KernelTable& kernels, const Model& model, KvCache& cache, ThreadPool& pool, StepOptions options);

  // Writes logits [rows][vocab_size] of the asked rows, and the maxima [rows][tiles] of their tiles: what a
  // sampler would otherwise read them all for. Returns -1, or with debug_nan the first layer
  // whose output is not finite (the number of layers for the head).
  int run(const Batch& batch, float* logits, float* tile_maxima);

  // Seconds that thread 0 spent by operation, waiting included; with `profile` only.
  const double* seconds() const { return seconds_; }

 private:
  void reserve(const Batch& batch);
  void forward(int thread);
  void layer(int thread, int index);
  void head(int thread);
  void embed(int thread);
  Activations prepare(int thread, const Linear& linear, const float* x, int64_t stride, const Norm& norm,
                      const int32_t* rows, int tokens, int in_features);
  void multiply(int thread, const Linear& linear, const Activations& x, const Sink& sink);
  void project(int thread, const Linear& linear, const Activations& x, bool add, float* y, int64_t stride);
  Activations gate(int thread, const Layer& layer, const Activations& x);
  void append(int thread, int index);
  void attend(int thread, int index);
  void attend_item(int thread, int index, const AttendItem& item);
  void merge_item(int thread, int index, const MergeItem& merge);

  // step_mixture.cpp
  void measure_mixture(const Mixture& mixture);
  void reserve_mixture(int64_t tokens);
  void mix(int thread, const Layer& layer);
  void route(int thread, const Layer& layer);
  void choose(int thread, const Mixture& mixture, int64_t token);
  void group(const Mixture& mixture);
  int64_t claim_found(int thread, const std::atomic<int64_t>& items, int64_t& end);
  void fill_experts(int thread, ExpertLinear ExpertWork::*which);
  void fill_expert_panel(int thread, const ExpertWork& work, ExpertLinear ExpertWork::*which, int panel);
  template <typename SinkOf>
  void multiply_experts(int thread, ExpertLinear ExpertWork::*which, const std::atomic<int64_t>& shares,
                        SinkOf&& sink_of);
  void sum_experts(int thread, const Mixture& mixture);

  void check_finite(int thread, int index, const float* x, int64_t count);
  void next(int thread, Operation done);

  const KernelTable& kernels_;
  const Model& model_;
  KvCache& cache_;
  ThreadPool& pool_;
  StepOptions options_;
  Workspace space_;
  RopeAngles angles_;
  const Batch* batch_ = nullptr;
  float* logits_ = nullptr;
  float* tile_maxima_ = nullptr;
  std::vector<AttendPlan> plans_;  // one a layer, shared by layers of one shape
  std::vector<int> plan_of_;
  int64_t hidden_stride_, qkv_stride_, attended_stride_, gated_stride_;
  int64_t most_experts_ = 0, most_passes_ = 0, logits_stride_ = 0, expert_stride_ = 0;  // of all mixtures
  int not_finite_ = -1;
  double seconds_[static_cast<int>(Operation::count)] = {};
  std::chrono::steady_clock::time_point mark_;
};

}  // namespace gristmill

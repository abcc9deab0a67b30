// Attention sections of a step: planned once for all layers of one shape.
#include <algorithm>
#include <tuple>

#include "program/step_run.h"

namespace twostroke {

namespace {

// Long items first, so that no thread starts one when the others are done; of equal ones, the
// pieces of a request's KV head follow each other.
bool runs_before(const AttentionItem& a, const AttentionItem& b) {
  if (a.cost != b.cost) return a.cost > b.cost;
  return std::tie(a.seq, a.kv_head, a.split, a.first_token) <
         std::tie(b.seq, b.kv_head, b.split, b.first_token);
}

}  // namespace

void StepRun::plan_attention() {
  memory_.seqs.resize(static_cast<size_t>(in_.num_seqs));
  size_t partials = 0;
  for (size_t i = 0; i < program_.attention_shapes.size(); i++) {
    AttentionPlan& plan = memory_.attention[i];
    plan.count = 0;
    if (!in_.num_seqs) continue;
    const Section& first = program_.sections[program_.attention_shapes[i].first_section];
    const auto& attention = std::get<AttentionSection>(first.work);
    point_at_rows(attention);
    const AttentionCall call = call_of(attention);
    plan.items.resize(static_cast<size_t>(kernels_.attention_max_items(call)));
    int64_t floats = 0;
    plan.count = kernels_.attention_plan(call, plan.items.data(), &floats);
    partials = std::max(partials, static_cast<size_t>(floats));
    std::sort(plan.items.begin(), plan.items.begin() + plan.count, runs_before);
  }
  const int64_t counters = in_.num_seqs * kv_.layer(0).num_kv_heads;
  memory_.splits_done.resize(static_cast<size_t>(counters));
  if (memory_.partials.size() < partials) memory_.partials.resize(partials);
}

// Points memory_.seqs at this layer's rows of q and of the output; neither is read yet.
void StepRun::point_at_rows(const AttentionSection& section) {
  for (int64_t i = 0; i < in_.num_seqs; i++) {
    const int64_t first = in_.cu_seqlens_q[i];
    memory_.seqs[i] = {section.q.row(first),
                       section.out.row(first),
                       in_.block_tables + i * in_.table_stride,
                       in_.cu_seqlens_q[i + 1] - first,
                       in_.context_lens[i],
                       section.q.ld,
                       section.out.ld};
  }
}

AttentionCall StepRun::call_of(const AttentionSection& section) const {
  const Attention& op = section.op;
  return {kv_.layer(op.layer), op.num_heads,        op.scale,     op.soft_cap,
          op.window,           memory_.seqs.data(), in_.num_seqs, pool_.size()};
}

int64_t StepRun::prepare(const AttentionSection& section) {
  point_at_rows(section);
  std::fill(memory_.splits_done.begin(), memory_.splits_done.end(), 0);
  return memory_.attention[section.shape].count;
}

void StepRun::run(const AttentionSection& section, int64_t item, int thread) {
  const AttentionPlan& plan = memory_.attention[section.shape];
  // The item that this thread will most likely take next, for prefetch only.
  const int64_t after = item + pool_.size();
  const AttentionItem* next = after < plan.count ? &plan.items[after] : nullptr;
  kernels_.attention_run(call_of(section), plan.items[item], next, scratch(thread),
                         memory_.partials.data(), memory_.splits_done.data());
}

}  // namespace twostroke

// What uneven.graph does row by row and edge by edge, behind a plain C interface: no Python, no torch, one file for all.
// Built by hatch_build.py where there is a compiler. OpenMP's functions are those of the library that torch has loaded.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#define UNEVEN_X86 1
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kAhead = 16;  // edges between a prefetch and its use
constexpr int kChunks = 64;
constexpr int64_t kNear = 16 << 20;  // bytes of x that one pass over the edges reads: most last-level caches keep them
constexpr int64_t kSlice = 32;       // columns of a packed slice: two lines of the cache, which are fetched together
constexpr int64_t kPacked = 128;     // columns that are packed at one time
constexpr int64_t kOwn = 2 << 20;    // bytes of y above which it is written past the caches, which then keep x

#ifdef UNEVEN_X86
// N vectors of a row in registers while its neighbours are added; the last one is masked.
template <int N, bool Weighted>
__attribute__((target("avx512f"))) void rows512(const int32_t* starts, const int32_t* columns, int64_t begin, int64_t end,
                                                 const float* x, int64_t ldx, float* y, int64_t ldy, const float* scale,
                                                 const float* weight, int64_t left, bool past) {
  const __mmask16 last = __mmask16((1u << left) - 1);
  const int64_t ones = starts[end];
  for (int64_t v = begin; v < end; ++v) {
    __m512 sum[N];
    for (int k = 0; k < N; ++k) sum[k] = _mm512_setzero_ps();
    for (int64_t e = starts[v]; e < starts[v + 1]; ++e) {
      if (e + kAhead < ones) {
        const char* next = reinterpret_cast<const char*>(x + int64_t(columns[e + kAhead]) * ldx);
        for (int k = 0; k < N; ++k) _mm_prefetch(next + 64 * k, _MM_HINT_T0);
      }
      const float* row = x + int64_t(columns[e]) * ldx;
      const __m512 by = _mm512_set1_ps(Weighted ? weight[columns[e]] : 1.0f);
      for (int k = 0; k < N; ++k) {
        const __m512 one = k < N - 1 ? _mm512_loadu_ps(row + 16 * k) : _mm512_maskz_loadu_ps(last, row + 16 * k);
        sum[k] = Weighted ? _mm512_fmadd_ps(by, one, sum[k]) : _mm512_add_ps(sum[k], one);
      }
    }
    float* out = y + v * ldy;
    if (scale) {
      const __m512 by = _mm512_set1_ps(scale[v]);
      for (int k = 0; k < N; ++k) sum[k] = _mm512_mul_ps(sum[k], by);
    }
    if (past) {
      for (int k = 0; k < N; ++k) _mm512_stream_ps(out + 16 * k, sum[k]);
      continue;
    }
    for (int k = 0; k < N - 1; ++k) _mm512_storeu_ps(out + 16 * k, sum[k]);
    _mm512_mask_storeu_ps(out + 16 * (N - 1), last, sum[N - 1]);
  }
}

template <int N, bool Weighted>
__attribute__((target("avx2"))) void rows256(const int32_t* starts, const int32_t* columns, int64_t begin, int64_t end,
                                              const float* x, int64_t ldx, float* y, int64_t ldy, const float* scale,
                                              const float* weight, int64_t left, bool past) {
  alignas(32) int32_t bits[8];
  for (int k = 0; k < 8; ++k) bits[k] = k < left ? -1 : 0;
  const __m256i last = _mm256_load_si256(reinterpret_cast<const __m256i*>(bits));
  const int64_t ones = starts[end];
  for (int64_t v = begin; v < end; ++v) {
    __m256 sum[N];
    for (int k = 0; k < N; ++k) sum[k] = _mm256_setzero_ps();
    for (int64_t e = starts[v]; e < starts[v + 1]; ++e) {
      if (e + kAhead < ones) {
        const char* next = reinterpret_cast<const char*>(x + int64_t(columns[e + kAhead]) * ldx);
        for (int k = 0; k < N; k += 2) _mm_prefetch(next + 32 * k, _MM_HINT_T0);
      }
      const float* row = x + int64_t(columns[e]) * ldx;
      const __m256 by = _mm256_set1_ps(Weighted ? weight[columns[e]] : 1.0f);
      for (int k = 0; k < N; ++k) {
        const __m256 one = k < N - 1 ? _mm256_loadu_ps(row + 8 * k) : _mm256_maskload_ps(row + 8 * k, last);
        sum[k] = _mm256_add_ps(sum[k], Weighted ? _mm256_mul_ps(by, one) : one);
      }
    }
    float* out = y + v * ldy;
    if (scale) {
      const __m256 by = _mm256_set1_ps(scale[v]);
      for (int k = 0; k < N; ++k) sum[k] = _mm256_mul_ps(sum[k], by);
    }
    if (past) {
      for (int k = 0; k < N; ++k) _mm256_stream_ps(out + 8 * k, sum[k]);
      continue;
    }
    for (int k = 0; k < N - 1; ++k) _mm256_storeu_ps(out + 8 * k, sum[k]);
    _mm256_maskstore_ps(out + 8 * (N - 1), last, sum[N - 1]);
  }
}

using Rows = void (*)(const int32_t*, const int32_t*, int64_t, int64_t, const float*, int64_t, float*, int64_t,
                      const float*, const float*, int64_t, bool);
template <bool W>
const Rows kRows512[] = {rows512<1, W>,  rows512<2, W>,  rows512<3, W>,  rows512<4, W>,  rows512<5, W>,  rows512<6, W>,
                         rows512<7, W>,  rows512<8, W>,  rows512<9, W>,  rows512<10, W>, rows512<11, W>, rows512<12, W>,
                         rows512<13, W>, rows512<14, W>, rows512<15, W>, rows512<16, W>};
template <bool W>
const Rows kRows256[] = {rows256<1, W>, rows256<2, W>, rows256<3, W>, rows256<4, W>,
                         rows256<5, W>, rows256<6, W>, rows256<7, W>, rows256<8, W>};
#endif

}  // namespace

extern "C" {

// The digest of the source that this was compiled from, for whoever has another source beside it.
const char* uneven_source() { return UNEVEN_SOURCE; }

// 2 for AVX-512, 1 for AVX2, 0 where the sums have to be made elsewhere.
int uneven_level() {
#ifdef UNEVEN_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return 2;
  if (__builtin_cpu_supports("avx2")) return 1;
#endif
  return 0;
}

// y[v] = scale[v] · Σ weight[u] · x[u] over the row v; scale and weight may be null, which is 1. sources are x's rows,
// bounds those of kChunks pieces of rows that take about equally long. With room, for kPacked floats of each source, x is
// copied there first, weighted, in slices of kSlice columns: a cache keeps a slice where it keeps no piece of wide rows,
// which lie on many pages, and on few of the cache's sets.
void uneven_sums(int level, const int32_t* starts, const int32_t* columns, const int32_t* bounds, const float* x,
                 int64_t sources, float* y, int64_t width, const float* scale, const float* weight, float* room) {
#ifdef UNEVEN_X86
  const int64_t lane = level == 2 ? 16 : 8, most = level == 2 ? 16 : 8;
  const bool past = width % lane == 0 && reinterpret_cast<uintptr_t>(y) % 64 == 0 && bounds[kChunks] * width * 4 > kOwn;
  auto add_up = [&](const float* in, int64_t ldx, int64_t from, int64_t to, const float* factor) {
    const int64_t n = (to - from + lane - 1) / lane, left = to - from - (n - 1) * lane;
    const Rows* all = factor ? (level == 2 ? kRows512<true> : kRows256<true>)
                             : (level == 2 ? kRows512<false> : kRows256<false>);
#pragma omp parallel for schedule(dynamic, 1)
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      all[n - 1](starts, columns, bounds[chunk], bounds[chunk + 1], in, ldx, y + from, width, scale, factor, left, past);
      if (past) _mm_sfence();  // before others read it
    }
  };
  if (!room) {
    const int64_t vectors = (width + lane - 1) / lane, far = (sources * width * 4 + kNear - 1) / kNear;
    const int64_t parts = std::max((vectors + most - 1) / most, std::min(far, vectors * lane / 64));
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t from = vectors * part / parts * lane, to = vectors * (part + 1) / parts * lane;
      add_up(x + from, width, from, std::min(to, width), weight);
    }
    return;
  }
  for (int64_t first = 0; first < width; first += kPacked) {
    const int64_t end = std::min(width, first + kPacked);
#pragma omp parallel for schedule(static)
    for (int64_t u = 0; u < sources; ++u) {
      const float by = weight ? weight[u] : 1.0f;
      float* to = room + u * kSlice;
      for (int64_t from = first; from < end; from += kSlice, to += sources * kSlice) {
        const float* of = x + u * width + from;
        if (u + kAhead / 2 < sources)
          for (int64_t k = 0; k < kSlice; k += 16) __builtin_prefetch(of + kAhead / 2 * width + k);
        if (end - from < kSlice) {
          for (int64_t k = 0; k < end - from; ++k) to[k] = by * of[k];
          continue;
        }
        float some[kSlice];  // all of it is read before any is written, so no load waits for a store
        std::memcpy(some, of, sizeof some);
        for (float& one : some) one *= by;
        std::memcpy(to, some, sizeof some);
      }
    }
    for (int64_t from = first, slice = 0; from < end; from += kSlice, ++slice)
      add_up(room + slice * sources * kSlice, kSlice, from, std::min(from + kSlice, end), nullptr);
  }
#endif
}

// Neighbourhood expansion; see uneven/graph/pure/cut/expand.py, which does the same, step by step.
void uneven_expand(int64_t edges, int64_t vertices, const int32_t* source, const int32_t* target, int32_t parts,
                   const double* shares, const int64_t* first, double beta, int64_t* placed, int64_t* ends,
                   int64_t* rank) {
  std::vector<int64_t> starts(vertices + 1, 0);
  for (int64_t e = 0; e < edges; ++e) {
    ++starts[source[e] + 1];
    if (source[e] != target[e]) ++starts[target[e] + 1];
  }
  for (int64_t v = 0; v < vertices; ++v) starts[v + 1] += starts[v];
  struct Half { int32_t other, edge; };
  std::vector<Half> near(starts[vertices]);
  std::vector<int64_t> fill(starts.begin(), starts.end() - 1);
  for (int64_t e = 0; e < edges; ++e) {
    near[fill[source[e]]++] = {target[e], int32_t(e)};
    if (source[e] != target[e]) near[fill[target[e]]++] = {source[e], int32_t(e)};
  }
  std::vector<int32_t> left(vertices), before(vertices), after(vertices);
  int32_t most = 0;
  double total = double(edges);
  for (int64_t v = 0; v < vertices; ++v) {
    left[v] = int32_t(starts[v + 1] - starts[v]);
    most = std::max(most, left[v]);
    if (left[v]) total += beta;
    rank[v] = -1;
  }
  std::vector<uint8_t> taken(edges, 0), member(vertices);
  std::vector<int32_t> head(most + 1), waits(vertices);  // a list for each number of unplaced edges, newest first
  int64_t count = 0, joined = 0, seed = 0;
  int32_t least = 1;
  auto leave = [&](int32_t v) {
    if (waits[v] < 0) return;
    if (before[v] >= 0) after[before[v]] = after[v]; else head[waits[v]] = after[v];
    if (after[v] >= 0) before[after[v]] = before[v];
    waits[v] = -1;
  };
  auto wait = [&](int32_t v) {
    leave(v);
    const int32_t n = left[v];
    if (!n) return;
    waits[v] = n, before[v] = -1, after[v] = head[n];
    if (head[n] >= 0) before[head[n]] = v;
    head[n] = v;
    least = std::min(least, n);
  };
  auto join = [&](int32_t v) {
    double cost = -double(count);
    member[v] = 1;
    if (rank[v] < 0) rank[v] = joined++, cost += beta;
    for (int64_t i = starts[v]; i < starts[v + 1]; ++i) {
      const Half half = near[i];
      if (taken[half.edge] || !member[half.other]) continue;
      taken[half.edge] = 1;
      placed[count++] = half.edge;
      --left[v];
      if (half.other != v) --left[half.other], wait(half.other);
    }
    wait(v);
    return cost + double(count);
  };
  auto grow = [&](double goal, bool last) {
    std::fill(member.begin(), member.end(), 0);
    std::fill(head.begin(), head.end(), -1);
    std::fill(waits.begin(), waits.end(), -1);
    least = 1;
    double cost = 0.0;
    while (last || cost < goal) {
      while (least <= most && head[least] < 0) ++least;
      int32_t core;
      if (least <= most) {
        core = head[least];
        leave(core);
      } else {
        while (seed < vertices && !left[first[seed]]) ++seed;
        if (seed == vertices) return;
        core = int32_t(first[seed]);
        cost += join(core);
      }
      for (int64_t i = starts[core]; i < starts[core + 1]; ++i) {
        if (!last && cost >= goal) return;
        if (!taken[near[i].edge] && !member[near[i].other]) cost += join(near[i].other);
      }
    }
  };
  ends[0] = 0;
  for (int32_t p = 0; p < parts; ++p) {
    grow(shares[p] * total, p == parts - 1);
    ends[p + 1] = count;
  }
  for (int64_t v = 0; v < vertices; ++v)
    if (rank[v] < 0) rank[v] = joined++;
}

// Libra (kind 0) or HDRF (kind 1); see uneven/graph/pure/cut/greedy.py.
void uneven_greedy(int kind, int64_t edges, int64_t vertices, const int32_t* source, const int32_t* target,
                   int32_t parts, const double* shares, const int32_t* order, int32_t* found) {
  struct Vertex { uint64_t held; int64_t degree; };
  std::vector<Vertex> all(vertices, Vertex{0, 0});
  for (int64_t e = 0; e < edges; ++e) ++all[source[e]].degree, ++all[target[e]].degree;
  std::vector<double> load(parts, 0.0), step(parts);
  for (int32_t p = 0; p < parts; ++p) step[p] = 1.0 / (shares[p] * parts);
  const uint64_t everywhere = parts == 64 ? ~uint64_t(0) : (uint64_t(1) << parts) - 1;
  for (int64_t i = 0; i < edges; ++i) {
    if (i + 2 * kAhead < edges) {
      __builtin_prefetch(source + order[i + 2 * kAhead]);
      __builtin_prefetch(target + order[i + 2 * kAhead]);
      __builtin_prefetch(&all[source[order[i + kAhead]]], 1);
      __builtin_prefetch(&all[target[order[i + kAhead]]], 1);
    }
    const int32_t e = order[i];
    Vertex &u = all[source[e]], &v = all[target[e]];
    const uint64_t mine = u.held, theirs = v.held;
    int32_t best = 0;
    if (kind == 0) {
      const uint64_t one = mine | theirs ? mine | theirs : everywhere;  // an end that is nowhere yet
      const uint64_t both = mine & theirs ? mine & theirs : u.degree < v.degree ? mine : theirs;
      const uint64_t allowed = mine && theirs ? both : one;
      double least = HUGE_VAL;
      for (int32_t p = 0; p < parts; ++p) {  // no branches: which part it is cannot be foreseen
        const double loaded = allowed >> p & 1 ? load[p] : HUGE_VAL;
        best = loaded < least ? p : best;
        least = loaded < least ? loaded : least;
      }
    } else {
      const double part_of = double(u.degree) / double(u.degree + v.degree);
      const auto [least, most] = std::minmax_element(load.begin(), load.end());
      double best_score = -1.0;
      for (int32_t p = 0; p < parts; ++p) {
        double score = (*most - load[p]) / (1.0 + *most - *least);
        score += (2.0 - part_of) * double(mine >> p & 1) + (1.0 + part_of) * double(theirs >> p & 1);
        if (score > best_score) best = p, best_score = score;
      }
    }
    u.held |= uint64_t(1) << best;
    v.held |= uint64_t(1) << best;
    load[best] += step[best];
    found[e] = best;
  }
}

}  // extern "C"

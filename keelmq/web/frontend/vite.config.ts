import { defineConfig } from "vitest/config";

// Addresses are relative and routes behind "#", so the built page works under any path.
// Nothing is inlined: the page's policy allows neither inline scripts nor data: scripts.
export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    outDir: "../static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    reportCompressedSize: false,
  },
  server: {
    // `npm run dev` beside a running server.
    proxy: { "/v1": "http://127.0.0.1:19876" },
  },
  test: { include: ["test/**/*.test.ts", "test/**/*.test.tsx"], environment: "node" },
});
